// Typeset the formulas that pymdownx.arithmatex has marked, on every page that the site shows.
document$.subscribe(() => {
  const delimiters = [{ left: "\\(", right: "\\)", display: false }, { left: "\\[", right: "\\]", display: true }];
  document.querySelectorAll(".arithmatex").forEach((formula) => renderMathInElement(formula, { delimiters }));
});
