// A long table gets a field above it that hides the rows without all of its words.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 15) continue;
  const field = Object.assign(document.createElement("input"), { type: "search", placeholder: `Filter ${rows.length} rows`, className: "filter-rows" });
  field.setAttribute("aria-label", field.placeholder);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.before(field);
}
