"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colors`);
  };
  const remember = (theme) => { try { localStorage.setItem("asgld-theme", theme); } catch { /* a file opened from disk may have no storage */ } };
  try {
    const kept = localStorage.getItem("asgld-theme");
    if (kept) root.dataset.theme = kept;
  } catch { /* see above */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    name();
  });
  dark.addEventListener("change", name);
  name();

  const value = (cell) => cell.dataset.value ?? cell.textContent.trim();
  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    if (a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      const label = header.textContent;
      const trigger = document.createElement("button");
      trigger.type = "button";
      trigger.textContent = label;
      header.replaceChildren(trigger);
      header.setAttribute("aria-sort", "none");
      trigger.addEventListener("click", () => {
        const up = header.getAttribute("aria-sort") !== "ascending";
        headers.forEach((other) => other.setAttribute("aria-sort", "none"));
        header.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const rows = [...body.rows];
        rows.sort((p, q) => (up ? 1 : -1) * compare(value(p.cells[column]), value(q.cells[column])));
        body.append(...rows);
      });
    });
  }

  // A link to a claim opens what it points to.
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
  open();
})();
