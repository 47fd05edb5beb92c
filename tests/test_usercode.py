"""User models: found, imported afresh, identified by their sources."""

import os
import subprocess
import sys
import threading

import pytest

from airfed import _usercode, scenario
from airfed.learning import models
from airfed.scenario import template
from airfed.training.setup import build_task

MAKE = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, {width}))\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that is not the working directory; what is imported from it is forgotten afterwards."""
    place, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(_usercode, "_IMPORTED", set())
    before, path = set(sys.modules), list(sys.path)
    yield place
    assert sys.path == path
    assert not sys.dont_write_bytecode
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def width(folder, spec="net:make"):
    return models.flatten(models.make_user_model(spec, folder=folder)[0]).size // 785


def test_beside_the_scenario_first_then_the_working_directory(folder, tmp_path):
    (tmp_path / "elsewhere" / "net.py").write_text(MAKE.format(width=10))
    assert width(folder) == 10
    (folder / "net.py").write_text(MAKE.format(width=11))
    assert width(folder) == 11
    assert width(tmp_path / "elsewhere") == 10
    assert width(tmp_path, f"{folder}/net:make") == 11
    assert width(tmp_path, "beside/net:make") == 11


def test_an_error_names_the_searched_folders(folder, tmp_path):
    with pytest.raises(ValueError, match="there is no module 'net' in") as caught:
        models.make_user_model("net:make", folder=folder)
    assert f"{folder} or in {tmp_path / 'elsewhere'}, nor is it installed." in str(caught.value)
    with pytest.raises(ValueError, match="there is no module 'net' in /nowhere"):
        models.make_user_model("/nowhere/net:make", folder=folder)
    with pytest.raises(ValueError, match=r"there is no module 'no_such_package\.net'"):
        models.make_user_model("no_such_package.net:make", folder=folder)


def test_helpers_beside_the_model_are_importable_also_late(folder):
    (folder / "sizes.py").write_text("WIDTH = 12\n")
    (folder / "late.py").write_text("BIAS = True\n")
    (folder / "net.py").write_text(
        "from torch import nn\nfrom sizes import WIDTH\n"
        "def make():\n    import late\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, WIDTH, bias=late.BIAS))\n"
    )
    assert width(folder) == 12
    assert not (folder / "__pycache__").exists()


def test_edited_code_is_read_again_even_within_a_second(folder):
    net, sizes = folder / "net.py", folder / "sizes.py"
    net.write_text("from torch import nn\nimport sizes\ndef make():\n    return nn.Linear(784, sizes.WIDTH)\n")
    for number in (21, 22, 23):  # as many characters, and maybe as old
        sizes.write_text(f"WIDTH = {number}\n")
        os.utime(sizes, (1e9, 1e9))
        assert width(folder) == number
    net.write_text(net.read_text().replace("sizes.WIDTH", "sizes.MISSING"))
    with pytest.raises(ValueError, match=r"AttributeError: .*MISSING.* \(net.py, line 4\)"):
        width(folder)
    sizes.write_text("MISSING = 24\n")
    os.utime(sizes, (1e9, 1e9))
    assert width(folder) == 24


def test_modules_of_one_name_in_two_folders_are_kept_apart(folder, tmp_path):
    for place, number in ((folder, 31), (tmp_path / "elsewhere", 32)):
        (place / "sizes.py").write_text(f"WIDTH = {number}\n")
        (place / "net.py").write_text(
            "from torch import nn\nimport sizes\ndef make():\n    return nn.Linear(784, sizes.WIDTH)\n"
        )
    for _ in range(2):
        assert width(folder) == 31
        assert width(tmp_path / "elsewhere") == 32


def test_a_package_without_init_can_be_loaded_again(folder):
    (folder / "nets").mkdir()
    (folder / "nets" / "sizes.py").write_text("WIDTH = 41\n")
    (folder / "nets" / "small.py").write_text(
        "from torch import nn\nfrom . import sizes\ndef make():\n    return nn.Linear(784, sizes.WIDTH)\n"
    )
    first = models.source_digest("nets.small:make", folder)
    assert models.source_digest("nets.small:make", folder) == first
    (folder / "nets" / "sizes.py").write_text("WIDTH = 42\n")
    assert models.source_digest("nets.small:make", folder) != first


@pytest.mark.parametrize("name", ["random", "json", "sys", "torch", "numpy", "airfed"])
def test_a_name_that_is_taken_is_refused(folder, name):
    (folder / f"{name}.py").write_text(MAKE.format(width=10))
    with pytest.raises(ValueError, match=f"The module '{name}' in .* must have another name"):
        models.make_user_model(f"{name}:make", folder=folder)
    assert name in sys.modules


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def make(:\n", "is not valid Python"),
        ("x = 1\ny = x + undefined\n", r"NameError: name 'undefined' is not defined \(net.py, line 2\)"),
        ("def make():\n    return [][1]\n", r"IndexError: list index out of range \(net.py, line 2\)"),
        ("def make(width):\n    return width\n", "TypeError: make.. missing 1 required positional argument"),
        ("import sys\nsys.exit()\n", r"SystemExit: no message \(net.py, line 2\)"),
        ("import no_such_package\n", r"No module named 'no_such_package' \(net.py, line 1\)"),
        ("class Other:\n    pass\n", "'make' in 'net' .* must be a callable, got None; the module has Other"),
        ("make = 3\n", "'make' in 'net' .* must be a callable, got 3"),
        ("raise ValueError('two\\nlines.')\n", r"ValueError: two lines \(net.py, line 1\)\.$"),
    ],
)
def test_every_exception_of_user_code_is_one_sentence(folder, code, says):
    (folder / "net.py").write_text(code)
    with pytest.raises(ValueError, match=says) as caught:
        models.make_user_model("net:make", folder=folder)
    assert "\n" not in str(caught.value)


# The digest of the sources


@pytest.fixture
def chain(folder):
    """A model that loads eight modules without import statements."""
    sources = {
        "by_module.py": "WIDTH = 10\n",
        "by_function.py": "def width():\n    import by_module\n    return by_module.WIDTH\n",
        "by_class.py": "import by_base\nclass Layer(by_base.Base):\n    pass\n",
        "by_base.py": "from torch import nn\nclass Base(nn.Flatten):\n    pass\n",
        "by_instance.py": "class Settings:\n    bias = True\n",
        "by_list.py": "def one():\n    return 1\n",
        "by_partial.py": "def two():\n    return 2\n",
        "by_wrapping.py": (
            "import functools\ndef wrap(f):\n    @functools.wraps(f)\n    def g():\n        return f()\n    return g\n"
        ),
        "late.py": "",
        "net.py": (
            "import functools\nfrom torch import nn\n"
            "from by_function import width\nfrom by_class import Layer\nimport by_instance\nimport by_list\n"
            "import by_partial\nimport by_wrapping\n"
            "settings = by_instance.Settings()\ndel by_instance\n"
            "layers = {'a': [(by_list.one,)]}\ndel by_list\n"
            "two = functools.partial(by_partial.two)\ndel by_partial\n"
            "@by_wrapping.wrap\ndef make():\n    import late\n"
            "    return nn.Sequential(Layer(), nn.Linear(784, width(), bias=settings.bias))\n"
            "del by_wrapping\n"
        ),
        "unused.py": "",
    }
    for name, text in sources.items():
        (folder / name).write_text(text)
    return folder


def test_every_source_counts_and_nothing_else(chain, tmp_path):
    first = models.source_digest("net:make", chain)
    assert len(first) == 64
    assert models.source_digest("net:make", chain) == first
    for file in sorted(chain.glob("*.py")):
        kept = file.read_text()
        file.write_text(kept + "# another comment\n")
        assert (models.source_digest("net:make", chain) != first) == (file.name != "unused.py"), file.name
        file.write_text(kept)
    assert models.source_digest("net:make", chain) == first
    moved = tmp_path / "moved"
    chain.rename(moved)
    assert models.source_digest("net:make", moved) == first
    assert models.source_digest(f"{moved}/net:make", tmp_path) == first


def test_the_digest_is_the_same_in_another_process_and_thread(chain):
    first = models.source_digest("net:make", chain)
    program = "import sys, pathlib; from airfed.learning.models import source_digest as digest\n"
    program += "print(digest('net:make', pathlib.Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", program, chain], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == first
    found = []
    threads = [threading.Thread(target=lambda: found.append(models.source_digest("net:make", chain))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [first] * 4


def test_the_callables_name_counts(folder):
    (folder / "net.py").write_text(MAKE.format(width=10) + "other = make\n")
    assert models.source_digest("net:make", folder) != models.source_digest("net:other", folder)


def test_modules_imported_by_others_count_as_well(chain, monkeypatch):
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(chain))
        import by_function  # noqa: F401

    before = models.source_digest("net:make", chain)
    (chain / "by_function.py").write_text((chain / "by_function.py").read_text() + "# more\n")
    assert models.source_digest("net:make", chain) != before


def test_modules_in_a_package_count_and_those_of_a_library_elsewhere_do_not(folder, tmp_path, monkeypatch):
    library = tmp_path / "library"
    for place in (library, folder / "nets"):
        place.mkdir()
    (library / "far_lib.py").write_text("WIDTH = 10\n")
    (folder / "nets" / "__init__.py").write_text("")
    (folder / "nets" / "late.py").write_text("")
    (folder / "nets" / "net.py").write_text(
        "from torch import nn\nimport far_lib\ndef make():\n    from . import late\n    return nn.Linear(784, 10)\n"
    )
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(library))
        first = models.source_digest("nets.net:make", folder)
        for file in (library / "far_lib.py", *(folder / "nets").glob("*.py")):
            kept = file.read_text()
            file.write_text(kept + "# more\n")
            assert (models.source_digest("nets.net:make", folder) != first) == (file.parent != library), file.name
            file.write_text(kept)
        assert models.source_digest("nets.net:make", folder) == first


def test_the_task_knows_the_digest(folder):
    text = template.SCENARIO.replace("num_devices = 100", "num_devices = 4")
    file = folder / "s.toml"
    file.write_text(text.replace('model = "cnn"', 'model = "net:make"'))
    (folder / "net.py").write_text(MAKE.format(width=10))
    task = build_task(scenario.load(file))
    assert task.code_digest == models.source_digest("net:make", folder)
    assert task.dimension == 7850
    task.engine.close()
    file.write_text(text.replace('model = "cnn"', 'model = "logistic"'))
    task = build_task(scenario.load(file))
    assert task.code_digest == ""
    task.engine.close()
