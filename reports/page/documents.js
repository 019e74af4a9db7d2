"use strict";
// The document browser: choose a document and one or two methods, walk through the tokens.

class DocumentBrowser {
  constructor(section) {
    const find = (name) => section.querySelector(`[data-part="${name}"]`);
    this.section = section;
    this.parts = Object.fromEntries(
      ["app", "status", "model", "task", "search", "document", "back", "on", "a", "b", "event", "legend", "input", "reference", "left-out", "random"].map((name) => [name, find(name)]),
    );
    this.panels = { tokens: new TokenPanel(find("panel"), find("live")), texts: new LabelPanel(find("panel"), find("live")) };
    this.panel = this.panels.tokens;
    this.panes = [new AnswerPane(this, find("pane-a")), new AnswerPane(this, find("pane-b"))];
    this.pinned = null;
    this.document = 0;
    this.turn = 0;
  }

  open(payload) {
    this.payload = payload;
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(this.rules());
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    this.listen();
    this.parts.app.hidden = false;
    this.parts.status.hidden = true;
    return this.follow(location.hash);
  }

  /** Colours of exit layers: shades are chosen with their inks in reports/exit_colours.py. */
  rules() {
    const of = (blocks, paper) =>
      this.payload.shades[blocks].map((shade, n) => {
        const scope = `.documents[data-blocks="${blocks}"] `;
        return `${scope}.exit-${n + 1}{background:${shade[paper]};color:${shade[paper + 1]}}${scope}.exit-fill-${n + 1}{fill:${shade[paper]}}`;
      }).join("");
    const all = (paper) => Object.keys(this.payload.shades).map((blocks) => of(blocks, paper)).join("");
    return `${all(0)}@media (prefers-color-scheme: dark){${all(2)}}`;
  }

  listen() {
    const { parts } = this;
    const turn = async () => { if (await this.choose(Number(parts.task.value))) this.remember(); };
    parts.model.addEventListener("change", () => { this.fillTasks(); turn(); });
    parts.task.addEventListener("change", turn);
    parts.search.addEventListener("input", () => {
      this.fillDocuments();
      if (Number(parts.document.value) !== this.document) { this.show(); this.remember(); }
    });
    parts.search.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); this.show(); this.remember(); } });
    parts.document.addEventListener("change", () => { this.show(); this.remember(); });
    for (const name of ["a", "b"]) parts[name].addEventListener("change", () => { this.fillDocuments(); this.show(); this.remember(); });
    parts.back.addEventListener("click", () => this.step(-1));
    parts.on.addEventListener("click", () => this.step(1));
    for (const button of this.section.querySelectorAll("[data-event]")) button.addEventListener("click", () => this.goTo(button.dataset.event));
    window.addEventListener("hashchange", () => this.follow(location.hash));
    const numbers = this.section.querySelector('[data-part="numbers"]');
    numbers.addEventListener("change", () => this.section.classList.toggle("numbered", numbers.checked));
  }

  /** Show what a link names, as far as it is here: #doc=KEY&a=CELL&b=CELL&token=N; without a key, a document where something happens. */
  async follow(hash) {
    const asked = new URLSearchParams(hash.slice(1));
    const linked = asked.has("doc");
    if (!linked && this.group) return;
    const begins = (cell, text) => Boolean(text) && cell.startsWith(text);
    const fits = (entry) =>
      (!asked.get("doc") || entry.documents.some(([, key]) => key === asked.get("doc"))) && (!asked.get("a") || entry.runs.some((run) => begins(run.cell, asked.get("a"))));
    const found = linked ? this.payload.groups.findIndex(fits) : -1;
    const number = found >= 0 ? found : this.richest();
    this.fillModels(number);
    const chosen = await this.choose(number, found >= 0 ? asked : null);
    if (!linked || !chosen) return;
    this.section.scrollIntoView();
    if (found < 0) this.panel.hint("The document or method of this link is not on this page.");
    const token = this.panes[0].answer.tokens[Number(asked.get("token")) - 1];
    if (found >= 0 && token) this.pin(this.panes[0], token);
  }

  /** The group with most runs, of those with one to recommend; random weights last. */
  richest() {
    const worth = this.payload.groups.map((entry) => (entry.random ? 0 : entry.of_runs + 1000 * (entry.recommended >= 0)));
    return worth.indexOf(Math.max(...worth));
  }

  fillModels(number) {
    const names = [...new Set(this.payload.groups.map((entry) => entry.model))];
    this.fill(this.parts.model, names.map((name) => [name, visible(name)]), this.payload.groups[number].model);
    this.fillTasks(number);
  }

  fillTasks(number) {
    const own = this.payload.groups.map((entry, n) => [n, entry]).filter(([, entry]) => entry.model === this.parts.model.value);
    this.fill(this.parts.task, own.map(([n, entry]) => [n, visible(entry.task + (entry.setting && ` (${entry.setting})`))]), number);
  }

  /** Settings of methods with one first name stand together, by threshold; full depth first. */
  fillRuns(select, chosen, none = []) {
    const runs = this.group.entry.runs.map((run, n) => {
      const text = visible(run.label) + (n === this.group.entry.recommended ? " (recommended)" : "");
      return { option: new Option(text, n, false, n === chosen), ...run, family: run.method.split("-")[0], level: run.threshold?.[0] ?? 0 };
    });
    const inOrder = (a, b) => a.localeCompare(b, "en", { numeric: true });
    runs.sort((a, b) => b.full - a.full || inOrder(a.method, b.method) || a.level - b.level || inOrder(a.label, b.label));
    const families = [...Map.groupBy(runs, ({ family }) => family)].map(([family, some]) => {
      const options = some.map(({ option }) => option);
      if (some.length < 2) return options[0];
      const group = document.createElement("optgroup");
      group.label = visible(family);
      group.append(...options);
      return group;
    });
    select.replaceChildren(...none, ...families);
  }

  fill(select, choices, chosen) {
    select.replaceChildren(...choices.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
  }

  /** Show a group. False if another was asked for while this one was unpacked: the last wins. */
  async choose(number, asked = null) {
    const turn = (this.turn += 1);
    const group = await this.payload.group(number);
    if (turn !== this.turn) return false;
    this.group = group;
    const { entry } = this.group;
    this.section.dataset.blocks = entry.blocks;
    this.section.classList.toggle("classifies", entry.classifies);
    this.panel = this.panels[entry.classifies ? "texts" : "tokens"];
    const place = (name) => (asked?.get(name) ? entry.runs.findIndex((run) => run.cell.startsWith(asked.get(name))) : -1);
    const a = place("a") >= 0 ? place("a") : this.group.opening();
    this.fillRuns(this.parts.a, a);
    this.fillRuns(this.parts.b, place("b"), [new Option("none", -1, false, place("b") < 0)]);
    this.parts.search.value = "";
    const wanted = asked?.get("doc");
    this.fillDocuments(wanted ? entry.documents.findIndex(([, key]) => key === wanted) : this.group.eventful(a));
    this.legend();
    this.parts.random.hidden = !entry.random;
    this.parts["left-out"].textContent = this.leftOut(entry);
    this.show();
    return true;
  }

  leftOut(entry) {
    const parts = [];
    if (entry.documents.length < entry.of_documents) parts.push(`${entry.documents.length} of ${entry.of_documents} documents, spread over the depth of their exits`);
    if (entry.runs.length < entry.of_runs) parts.push(`${entry.runs.length} of ${entry.of_runs} settings, the frontier first`);
    return parts.length ? `To keep the page small it has ${parts.join(", and ")}; \`exitbench show\` has all.` : "";
  }

  /** The documents whose key, number or answer has every word that is searched for; if none has, the one shown stays. */
  fillDocuments(chosen = this.document) {
    const words = this.parts.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const run = Number(this.parts.a.value);
    const reading = this.group.full >= 0 ? this.group.full : run;
    const documents = this.group.entry.documents.map(([ordinal, key], n) => {
      const text = visible(this.group.title(reading, n));
      return { n, text: `${ordinal} · ${text.slice(0, 60)}`, all: `${ordinal} ${key} ${text} ${visible(this.group.answerText(run, n))}`.toLowerCase() };
    });
    const found = documents.filter(({ all }) => words.every((word) => all.includes(word)));
    const choices = found.length ? found : documents.slice(chosen, chosen + 1);
    this.fill(this.parts.document, choices.map(({ n, text }) => [n, text]), chosen);
    this.parts.document.disabled = !found.length;
    const output = this.section.querySelector('[data-part="found"]');
    output.textContent = words.length ? `${found.length} found` : "";
  }

  step(by) {
    const { document: select } = this.parts;
    if (select.disabled) return;
    select.selectedIndex = (select.selectedIndex + by + select.options.length) % select.options.length;
    this.show();
    this.remember();
  }

  /** Go to the next place where something of a kind happens, and say what. */
  goTo(kind) {
    const { parts } = this;
    const run = Number(parts.a.value);
    if (kind === "disagreements" && parts.b.value === "-1") parts.b.value = run === this.group.full ? this.group.opening() : this.group.full;
    const key = [kind, this.turn, run, parts.b.value].join();
    if (this.events?.key !== key) this.events = { key, at: -1, places: EVENTS[kind](this.group, run, Number(parts.b.value)) };
    const { places } = this.events;
    parts.event.textContent = places.length ? "" : "none in these answers";
    if (!places.length) return;
    this.events.at = (this.events.at + 1) % places.length;
    const { document, position, told } = places[this.events.at];
    parts.search.value = "";
    this.fillDocuments(document);
    this.show();
    this.remember();
    const token = this.panes[0].answer.tokens[position];
    if (token) this.pin(this.panes[0], token);
    parts.event.textContent = `${this.events.at + 1} of ${places.length}${places.length === MOST_PLACES ? "+" : ""}: ${told}`;
  }

  legend() {
    const swatches = Array.from({ length: this.group.blocks }, (_, n) => make("span", `token exit-${n + 1}`, String(n + 1)));
    this.parts.legend.replaceChildren(make("span", "", "Exit after block"), make("span", "swatches", ...swatches));
  }

  show() {
    const document = (this.document = Number(this.parts.document.value));
    this.unpin();
    const runs = [Number(this.parts.a.value), Number(this.parts.b.value)];
    this.section.classList.toggle("paired", runs[1] >= 0);
    const answers = runs.map((run) => (run < 0 ? null : this.group.answer(run, document)));
    const most = Math.max(20, ...answers.map((answer) => answer?.tokens.length ?? 0));
    this.panes.forEach((pane, n) => {
      pane.element.hidden = !answers[n];
      pane.answer = null;
      if (answers[n]) pane.show(this.group, answers[n], most);
    });
    this.parts.input.hidden = !this.group.entry.classifies;
    if (this.group.entry.classifies) this.parts.input.replaceChildren(...inputParts(this.group, document));
    const reference = this.group.referenceText(document);
    this.parts.reference.hidden = !reference;
    this.parts.reference.lastElementChild.textContent = visible(reference);
    const { tokens } = this.panes[0].answer;
    if (tokens.length) this.look(this.panes[0], tokens.find((token) => token.first) ?? tokens[0], false);
    else this.panel.hint("Nothing was generated.");
  }

  /** Show a token in the panel, unless another is pinned. */
  look(pane, token, aloud) {
    if (this.pinned && !(this.pinned.pane === pane && this.pinned.token === token)) {
      if (aloud) pane.reach(token.position);
      return;
    }
    for (const other of this.panes.filter(({ answer }) => answer)) {
      other.mark("active", other === pane ? token.position : null);
      const twin = other !== pane && token.position <= Math.min(other.answer.shared, pane.answer.shared);
      other.mark("twin", twin ? token.position : null);
    }
    pane.reach(token.position);
    this.panel.show(this.group, pane.answer, token, this.pinned !== null, () => this.letGo());
    if (aloud) this.panel.announce(this.group, token);
  }

  pin(pane, token) {
    const again = this.pinned?.token === token;
    this.unpin();
    if (again) return this.look(pane, token, false);
    this.pinned = { pane, token };
    pane.element_of(token.position).setAttribute("aria-selected", "true");
    this.look(pane, token, true);
    pane.element_of(token.position).scrollIntoView({ block: "nearest" });
    this.remember();
  }

  unpin() {
    const pinned = this.pinned;
    this.pinned = null;
    pinned?.pane.element_of(pinned.token.position)?.setAttribute("aria-selected", "false");
    if (pinned?.pane.answer?.tokens.includes(pinned.token)) this.look(pinned.pane, pinned.token, false);
  }

  letGo() {
    const { pane, token } = this.pinned;
    this.unpin();
    pane.element_of(token.position).focus();
  }

  /** Keep a link to what is shown in the address. */
  remember() {
    const { entry } = this.group;
    const cell = (select) => entry.runs[Number(select.value)]?.cell.slice(0, 12);
    const link = new URLSearchParams({ doc: entry.documents[Number(this.parts.document.value)][1], a: cell(this.parts.a) });
    if (cell(this.parts.b)) link.set("b", cell(this.parts.b));
    if (this.pinned && this.pinned.pane === this.panes[0]) link.set("token", this.pinned.token.position + 1);
    history.replaceState(null, "", `#${link}`);
  }
}

{
  const section = document.querySelector("section.documents");
  const data = document.getElementById("documents-data");
  if (section && data) {
    let begun = false;
    let opened = null;
    const payload = () => (opened ??= TracePayload.open(data.textContent));
    const begin = async () => {
      if (begun) return;
      begun = true;
      const status = section.querySelector('[data-part="status"]');
      status.textContent = "Unpacking the answers …";
      if (typeof DecompressionStream === "undefined") status.textContent = "This browser is too old to unpack the answers.";
      else await new DocumentBrowser(section).open(await payload());
    };
    /** Every document once, with what full depth answered: for the search over the page. */
    window.searchDocuments = async () => {
      const { groups } = await payload();
      const found = new Map();
      for (const [number, entry] of groups.entries()) {
        const group = await (await payload()).group(number);
        const run = Math.max(0, entry.recommended, group.full);
        entry.documents.forEach(([ordinal, key], n) => {
          const title = `${visible(entry.task)} ${ordinal}: ${visible(group.title(run, n))}`;
          const address = `#${new URLSearchParams({ doc: key, a: entry.runs[run].cell.slice(0, 12) })}`;
          if (!found.has(key)) found.set(key, { title, address, all: `${key} ${title}` });
        });
      }
      return found.values();
    };
    (window.requestIdleCallback ?? setTimeout)(begin); // before anybody comes there: what is below does not jump
    new IntersectionObserver((seen) => { if (seen.some((entry) => entry.isIntersecting)) begin(); }, { rootMargin: "200px" }).observe(section);
    const linked = () => { if (new URLSearchParams(location.hash.slice(1)).has("doc")) begin(); };
    window.addEventListener("hashchange", linked);
    linked();
  }
}
