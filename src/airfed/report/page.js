"use strict";
const root = document.documentElement;
const button = document.getElementById("theme");
const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
name();

// Show the values of a chart at once, also on touch; without this script the browser shows them as titles.
const tip = document.getElementById("tip");
document.addEventListener("pointerover", (event) => {
  const column = event.target.closest?.(".hover");
  tip.style.display = column ? "block" : "none";
  if (!column) return;
  const title = column.querySelector("title");
  if (title) {
    column.dataset.tip = title.textContent;
    title.remove();
  }
  tip.textContent = column.dataset.tip;
  const box = column.getBoundingClientRect();
  const left = box.right + 8 + tip.offsetWidth < innerWidth ? box.right + 8 : box.left - 8 - tip.offsetWidth;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, box.top)}px`;
});
