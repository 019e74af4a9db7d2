"use strict";
// The results' filters, order and columns stand in the address; of the loss that a reader allows the rows know whether they are within it.
(() => {
  const article = document.querySelector("article.results");
  if (!article?.rowsInOrder) return;
  const tools = article.querySelector(".filter");
  const quality = [...tools.querySelectorAll("select")].at(-1);

  const [within, beyond] = ["within the loss allowed", "not shown to be"];
  const judge = (percent) => {
    for (const { dataset } of article.rowsInOrder) {
      dataset[`f${quality.dataset.facet}`] = Number(dataset.loss ?? Infinity) <= percent ? within : beyond;
    }
  };
  for (const value of [within, beyond]) quality.add(new Option(value));
  quality.parentElement.hidden = false;
  judge(Number(document.querySelector(".allow input")?.value ?? 1));
  document.addEventListener("allowed", ({ detail }) => {
    judge(detail);
    if (quality.value) quality.dispatchEvent(new Event("input"));
  });

  address.keep(tools.querySelectorAll("select, input"));

  const columns = article.querySelector(".all-columns");
  columns.checked = address.get("columns") === "all";
  columns.addEventListener("input", () => address.set("columns", columns.checked ? "all" : ""));

  const headings = [...article.querySelectorAll("th")];
  const [by, order] = (address.get("sort") ?? "").split(".");
  const sorted = headings[Number(by)]?.querySelector("button");
  if (order) for (let times = order === "descending" ? 2 : 1; times > 0; times--) sorted?.click();
  headings.forEach((heading, index) => heading.addEventListener("click", () => address.set("sort", `${index}.${heading.getAttribute("aria-sort")}`)));
})();
