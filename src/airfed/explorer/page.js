// The little that the page does by itself: theme, address, clipboard, drawer, and telling the server how wide it is.
window.airfed = {
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
  reveal(group) {
    // What was opened is scrolled to within the side bar, below the headings that stay.
    const side = document.querySelector("#controls");
    const content = group.querySelector(".q-expansion-item__content");
    if (!content?.offsetHeight) return;
    const [inner, outer] = [content.getBoundingClientRect(), side.getBoundingClientRect()];
    const margin = parseFloat(getComputedStyle(content).scrollMarginTop);
    if (inner.bottom > outer.bottom - 40) side.scrollBy({ top: inner.top - outer.top - margin, behavior: "smooth" });
  },
  fit() {
    // The side bar ends where the window does, wherever it begins.
    const side = document.querySelector("#controls");
    const top = Math.max(Math.round(side.getBoundingClientRect().top), 66);
    side.style.setProperty("--room", `${Math.max(innerHeight - top - 14, 280)}px`);
  },
  measure() {
    const main = document.querySelector(".content");
    if (main) emitEvent("measured", { width: Math.round(main.clientWidth) });
  },
  start() {
    this.theme();
    this.measure();
    if (this.observer) return;
    let timer;
    this.observer = new ResizeObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(() => this.measure(), 120);
    });
    this.observer.observe(document.querySelector(".content"));
    new ResizeObserver(() => this.fit()).observe(document.querySelector(".hero"));
    for (const event of ["scroll", "resize"]) addEventListener(event, () => this.fit(), { passive: true });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && document.querySelector("#controls.opened")) this.drawer(false);
    });
  },
};
