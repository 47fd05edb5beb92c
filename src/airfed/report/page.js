"use strict";
const root = document.documentElement;
const button = document.getElementById("theme");
const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
name();

// What a chart tells the pointer appears at once, and under a finger too; without this script the browser shows it.
const tip = document.getElementById("tip");
document.addEventListener("pointerover", (event) => {
  const place = event.target.closest?.(".hover");
  tip.style.display = place ? "block" : "none";
  if (!place) return;
  const title = place.querySelector("title");
  if (title) {
    place.dataset.tip = title.textContent;
    title.remove();
  }
  tip.textContent = place.dataset.tip;
  const box = place.getBoundingClientRect();
  const left = box.right + 8 + tip.offsetWidth < innerWidth ? box.right + 8 : box.left - 8 - tip.offsetWidth;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, box.top)}px`;
});
