// Client side: theme, address, clipboard, drawer, number formats of charts.
window.airfed = {
  number(value) {
    if (value === null || value === undefined || Number.isNaN(Number(value))) return "–";
    const size = Math.abs(value);
    if (size && (size < 1e-4 || size >= 1e6)) return Number(value).toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    return String(Number(Number(value).toPrecision(4)));
  },
  percent: (value) => (value === null || value === undefined ? "–" : `${Number((100 * (value[2] ?? value)).toPrecision(3))}%`),
  squared: (value) => (value === null || value === undefined ? "–" : airfed.number(value * value)),
  theme(next) {
    const stored = localStorage.getItem("airfed-theme");
    const value = next ?? stored;
    if (value === "dark" || value === "light") Quasar.Dark.set(value === "dark");
    if (next) localStorage.setItem("airfed-theme", next);
  },
  toggle() {
    this.theme(Quasar.Dark.isActive ? "light" : "dark");
  },
  address(query) {
    history.replaceState(history.state, "", location.pathname + (query ? "?" + query : ""));
  },
  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  },
  drawer(open) {
    const side = document.querySelector("#controls");
    const button = document.querySelector("#drawer");
    const opened = side.classList.toggle("opened", open ?? !side.classList.contains("opened"));
    button.classList.toggle("opened", opened);
    button.setAttribute("aria-expanded", opened);
    if (!opened) button.focus();
  },
  fit() {
    // The side bar extends to the bottom of the window.
    const side = document.querySelector("#controls");
    const top = Math.max(Math.round(side.getBoundingClientRect().top), 66);
    side.style.setProperty("--room", `${Math.max(innerHeight - top - 14, 280)}px`);
  },
  start() {
    this.theme();
    if (this.started) return;
    this.started = true;
    new ResizeObserver(() => this.fit()).observe(document.querySelector(".hero"));
    for (const event of ["scroll", "resize"]) addEventListener(event, () => this.fit(), { passive: true });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && document.querySelector("#controls.opened")) this.drawer(false);
    });
  },
};
