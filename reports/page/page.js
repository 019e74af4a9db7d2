"use strict";
// Without this script the page is complete; with it, tables sort and filter and queries copy.
for (const article of document.querySelectorAll(".table:has(table)")) {
  const body = article.querySelector("tbody");
  const rows = [...body.rows];
  const tools = article.querySelector(".filter");
  const selects = [...tools.querySelectorAll("select")];
  const [input, output] = [tools.querySelector("input"), tools.querySelector("output")];

  const facet = (row, select) => row.dataset[`f${select.dataset.facet}`];
  for (const select of selects) {
    const values = [...new Set(rows.map((row) => facet(row, select)))].filter(Boolean);
    values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    for (const value of values) select.add(new Option(value));
    select.parentElement.hidden = values.length < 2;
  }
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden =
        !words.every((word) => text.includes(word)) ||
        selects.some((select) => select.value && select.value !== facet(row, select));
    }
    const shown = rows.filter((row) => !row.hidden);
    output.textContent = shown.length < rows.length ? `${shown.length} of ${rows.length} rows` : `${rows.length} rows`;
    article.dispatchEvent(new CustomEvent("filtered", { detail: rows, bubbles: true }));
  };
  for (const element of [input, ...selects]) element.addEventListener("input", filter);
  article.rowsInOrder = [...rows];
  filter();
  if (article.dataset.address) address.keep([...selects, input], `${article.dataset.address}-`);
  const around = article.closest("details");
  if (around && [...selects, input].some((element) => element.value)) around.open = true;

  article.querySelectorAll("th").forEach((heading, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      const sign = down ? -1 : 1;
      const numeric = heading.classList.contains("number");
      const key = (row) => row.cells[index].dataset.key ?? row.cells[index].textContent;
      const compare = (a, b) => {
        if (a === "" || b === "") return (a === "") - (b === ""); // what was not measured stays last
        return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
      };
      rows.sort((a, b) => compare(key(a), key(b)));
      article.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...rows);
    });
  });
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.closest("details").querySelector("code").textContent);
    button.textContent = "Copied";
  });
}
// A page that was moved alone still has its data; without this script the links lead to the files beside it.
for (const link of document.querySelectorAll("a[data-gzip]")) {
  link.addEventListener("click", async (event) => {
    if (!link.dataset.gzip) return;
    event.preventDefault();
    const bytes = Uint8Array.from(atob(link.dataset.gzip), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const content = await new Response(stream).blob();
    delete link.dataset.gzip;
    link.href = URL.createObjectURL(new Blob([content], { type: "text/csv" }));
    link.click();
  });
}
