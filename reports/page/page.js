"use strict";
// Without this script the page is complete; with it, tables sort and filter and queries copy.
for (const section of document.querySelectorAll("section:has(table)")) {
  const body = section.querySelector("tbody");
  const rows = [...body.rows];
  const tools = section.querySelector(".filter");
  const [input, output] = [tools.querySelector("input"), tools.querySelector("output")];
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    output.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  };
  input.addEventListener("input", filter);
  tools.hidden = false;
  filter();

  section.querySelectorAll("th").forEach((heading, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      const sign = down ? -1 : 1;
      const numeric = heading.classList.contains("number");
      const key = (row) => row.cells[index].dataset.key;
      const compare = (a, b) => {
        if (a === "" || b === "") return (a === "") - (b === ""); // what was not measured stays last
        return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
      };
      rows.sort((a, b) => compare(key(a), key(b)));
      section.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
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
