"use strict";
// Search over what the page has: methods, figures and tables, claims, documents.
{
  const MOST = 6; // hits of a kind
  const box = document.querySelector(".find");
  const [input, found, output, list] = ["input", ".found", "output", "ul"].map((name) => box.querySelector(name));
  const text = (element) => element.textContent.replace(/\s+/g, " ").trim();
  const entry = (kind, title, address, all = title) => ({ kind, title, address, all: `${kind} ${all}`.toLowerCase() });

  const methods = () => {
    const rows = [...(document.querySelector("article:has(#summary) table")?.tBodies[0].rows ?? [])];
    const select = document.querySelector("article:has(#summary) select[name='Method']");
    const show = (name) => () => {
      select.value = name;
      select.dispatchEvent(new Event("input", { bubbles: true }));
      select.closest("article").scrollIntoView();
    };
    const names = [...(select?.options ?? [])].map((option) => option.value).filter(Boolean);
    return names.map((name) => ({ ...entry("method", name, "#summary"), act: show(name) }));
  };
  const headings = () =>
    [...document.querySelectorAll("main :is(article.table h3[id], details.card[id])")].map((element) => {
      const card = element.matches("details");
      const title = text(card ? element.querySelector("h3") : element);
      return entry(card && !element.matches(".table") ? "figure" : "table", title, `#${element.id}`, `${element.id} ${text(element.closest("article, details"))}`);
    });
  const claims = () =>
    [...document.querySelectorAll("table.claims tbody tr")].map((row) =>
      entry("claim", `${text(row.cells[0])}: ${text(row.querySelector(".prose"))}`, `#${row.id}`, text(row)),
    );

  let index = null;
  const gather = async () => {
    if (index) return;
    index = [...methods(), ...headings(), ...claims()];
    for (const { title, address, all } of (await window.searchDocuments?.()) ?? []) index.push(entry("document", title, address, all));
    show();
  };
  const show = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found.hidden = !words.length;
    const hits = words.length ? index.filter(({ all }) => words.every((word) => all.includes(word))) : [];
    output.textContent = hits.length ? `${hits.length} found` : "Nothing found";
    const shown = [...Map.groupBy(hits, ({ kind }) => kind).values()].flatMap((some) => some.slice(0, MOST));
    list.replaceChildren(...shown.map(link));
  };
  const link = ({ kind, title, address, act }) => {
    const [item, anchor, name] = ["li", "a", "b"].map((tag) => document.createElement(tag));
    name.textContent = kind;
    anchor.href = address;
    anchor.append(name, title.length > 110 ? `${title.slice(0, 109)}…` : title);
    anchor.addEventListener("click", () => { found.hidden = true; act?.(); });
    item.append(anchor);
    return item;
  };
  input.addEventListener("focus", gather);
  input.addEventListener("input", show);
  box.addEventListener("keydown", (event) => {
    const stops = [input, ...list.querySelectorAll("a")];
    const at = stops.indexOf(document.activeElement);
    if (event.key === "Escape") { found.hidden = true; input.focus(); }
    else if (event.key === "Enter" && at === 0) stops[1]?.click();
    else if (event.key === "ArrowDown") stops[Math.min(at + 1, stops.length - 1)].focus();
    else if (event.key === "ArrowUp") stops[Math.max(at - 1, 0)].focus();
    else return;
    event.preventDefault();
  });
  box.addEventListener("focusout", (event) => { if (event.relatedTarget && !box.contains(event.relatedTarget)) found.hidden = true; });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    input.focus();
  });
}
