"use strict";
// The frontier: a point for each row of the results that the filters leave, a panel for each model and task.
(() => {
  const chart = document.getElementById("chart");
  const table = document.getElementById("summary")?.closest("article");
  if (!chart || !table?.rowsInOrder) return;
  const { styles, points } = JSON.parse(document.getElementById("points").textContent);
  const MOST_PANELS = 24; // more would keep a browser busy for seconds
  const [canvas, tip, legend] = [".canvas", ".tip", ".methods"].map((name) => chart.querySelector(name));
  const axes = { x: chart.querySelector("[data-x]"), y: chart.querySelector("[data-y]") };
  const alone = new Set((address.get("only") ?? "").split(" ").filter((method) => Object.hasOwn(styles, method)));
  const faint = (p) => alone.size > 0 && !alone.has(p.method);

  const draw = () => {
    const [x, y] = [CHART_X[axes.x.value], CHART_Y[axes.y.value]];
    const visible = points.filter((p) => !table.rowsInOrder[p.row].hidden);
    const shown = visible.filter((p) => Number.isFinite(x.at(p)) && Number.isFinite(y.at(p)));
    const groups = Object.values(Object.groupBy(shown, (p) => JSON.stringify([p.model, p.task])));
    // A panel with full depth alone shows nothing beside others that show more.
    const told = groups.filter((group) => group.some((p) => !p.full));
    canvas.replaceChildren();
    tip.hidden = true;
    if (!shown.length) canvas.textContent = visible.length ? "None of these rows has both of these values." : "No row is left.";
    const drawn = told.length ? told : groups;
    const frames = drawn.slice(0, MOST_PANELS).map((group) => [frame(group[0]), group]);
    if (drawn.length > MOST_PANELS) {
      const more = canvas.appendChild(document.createElement("p"));
      more.textContent = `${drawn.length - MOST_PANELS} more models and tasks: filter by one to see it.`;
    }
    listen(frames.map(([parent, group]) => new ChartPanel(parent, group, { x, y, styles, faint })));
    explain(shown);
  };
  const frame = ({ model, task }) => {
    const parent = canvas.appendChild(document.createElement("div"));
    const button = parent.appendChild(document.createElement("h4")).appendChild(document.createElement("button"));
    button.type = "button";
    button.textContent = `${model} on ${task}`;
    button.addEventListener("click", () => {
      const [first] = table.querySelectorAll(".filter");
      for (const [label, value] of [["Model", model], ["Task", task]]) {
        const select = [...first.querySelectorAll("label")].find((one) => one.firstChild.textContent.trim() === label)?.querySelector("select");
        if (!select || select.parentElement.hidden) continue;
        select.value = select.value === value ? "" : value;
        select.dispatchEvent(new Event("input"));
      }
    });
    return parent;
  };
  const goTo = (p) => {
    const row = table.rowsInOrder[p.row];
    row.scrollIntoView({ block: "center" });
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
  };
  const listen = (panels) => {
    const order = panels.flatMap((panel) => panel.order.map((p, i) => [p, panel.marks[i]])).filter(([p]) => !faint(p));
    order[0]?.[1].setAttribute("tabindex", 0);
    const show = (i) => {
      order.forEach(([, mark], j) => mark.classList.toggle("chosen", i === j));
      tip.textContent = chartWords(order[i][0]);
      tip.hidden = false;
    };
    order.forEach(([p, mark], i) => {
      mark.addEventListener("mouseenter", () => show(i));
      mark.addEventListener("focus", () => show(i));
      mark.addEventListener("click", () => goTo(p));
      mark.addEventListener("keydown", (event) => {
        if (event.key === "Enter") goTo(p);
        const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: order.length - 1 }[event.key];
        if (next === undefined || !order[next]) return;
        event.preventDefault();
        mark.setAttribute("tabindex", -1);
        order[next][1].setAttribute("tabindex", 0);
        order[next][1].focus();
      });
    });
  };
  const explain = (shown) => {
    const focused = document.activeElement?.closest(".methods") && document.activeElement.textContent;
    legend.replaceChildren();
    for (const method of [...new Set([...shown.map((p) => p.method), ...alone])].sort()) {
      const entry = legend.appendChild(document.createElement("button"));
      entry.type = "button";
      entry.setAttribute("aria-pressed", alone.has(method));
      const [colour, marker] = styles[method];
      const svg = chartElement(entry, "svg", { viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": true });
      chartElement(svg, "path", { d: CHART_MARKS[marker], fill: colour });
      entry.append(method);
      entry.addEventListener("click", () => {
        if (!alone.delete(method)) alone.add(method);
        address.set("only", [...alone].join(" "));
        draw();
      });
      if (method === focused) entry.focus();
    }
  };
  for (const [name, select] of Object.entries(axes)) {
    const usual = select.value;
    const asked = address.get(name);
    if (asked !== null && [...select.options].some((option) => option.value === asked)) select.value = asked;
    select.addEventListener("input", () => { address.set(name, select.value, usual); draw(); });
  }
  table.addEventListener("filtered", draw);
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - width) < 1) return; // its own height changes with every drawing
    width = contentRect.width;
    draw();
  }).observe(canvas);
  chart.hidden = false;
})();
