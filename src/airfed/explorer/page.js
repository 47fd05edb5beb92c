// The little that the page does by itself: theme, address, clipboard, and telling the server how wide it is.
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
  measure() {
    const main = document.querySelector(".content");
    if (main) emitEvent("measured", { width: Math.round(main.clientWidth) });
  },
  start() {
    this.theme();
    this.measure();
    let timer;
    new ResizeObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(() => this.measure(), 120);
    }).observe(document.querySelector(".content"));
  },
};
