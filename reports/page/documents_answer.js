"use strict";
// One answer as a row of tokens that can be walked through.

const CLIPPED = 60; // characters of a token that are shown in the text; the panel has all
const FOLDED = 6; // repeats of one token from which on they are folded
const RIGHT_TO_LEFT = /\p{Script=Arabic}|\p{Script=Hebrew}|\p{Script=Syriac}|\p{Script=Thaana}/gu;

/** One answer: a list of tokens of which one can be reached with Tab and the others with arrow keys. */
class AnswerPane {
  constructor(browser, element) {
    Object.assign(this, { browser, element, answer: null });
    element.addEventListener("pointerover", (event) => this.preview(event));
    element.addEventListener("click", (event) => this.at(event, (token) => browser.pin(this, token)));
    element.addEventListener("focusin", (event) => this.at(event, (token) => browser.look(this, token, true)));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  at(event, act) {
    const element = event.target.closest("[data-position]");
    if (element) act(this.answer.tokens[Number(element.dataset.position)]);
  }

  preview(event) {
    if (event.pointerType !== "touch") this.at(event, (token) => this.browser.look(this, token, false));
  }

  /** Show an answer; its strip is as long as one of `most` tokens. */
  show(group, answer, most) {
    this.answer = answer;
    const run = group.entry.runs[answer.run];
    this.text = make("div", "answer");
    this.text.setAttribute("role", "listbox");
    this.text.setAttribute("aria-label", `${group.entry.classifies ? "Answer" : "Tokens"} of ${run.label}`);
    this.text.setAttribute("aria-orientation", "horizontal");
    const said = answer.tokens.map((token) => token.text).join("");
    this.text.dir = (said.match(RIGHT_TO_LEFT) ?? []).length * 2 > said.length ? "rtl" : "ltr";
    for (const token of answer.tokens) this.text.append(...this.parts(group, token));
    this.fold(answer.tokens);
    if (!answer.tokens.length) this.text.append(make("p", "hint", "An empty answer."));
    if (answer.tokens.length) this.element_of(0).tabIndex = 0;
    const name = make("h3", "", run.label);
    name.title = run.params;
    this.element.replaceChildren(name, make("p", "sums", this.sums(group, answer)), group.entry.classifies ? blockStrip(group, answer) : this.strip(group, answer, most), this.text);
  }

  /** The depth of every exit over the document: a bar a token, which leads to it. */
  strip(group, { tokens }, most) {
    const bars = tokens.map(({ position, exit, differs }) => {
      const height = exit / group.blocks;
      return draw("rect", { x: position + 0.06, width: 0.88, y: 1 - height, height, class: `exit-fill-${exit}${differs ? " differs" : ""}` });
    });
    const spoken = `Blocks until each of ${tokens.length} tokens left: ${tokens.slice(0, 100).map(({ exit }) => exit).join(", ")}`;
    const strip = draw("svg", { viewBox: `0 0 ${most} 1`, preserveAspectRatio: "none", role: "img", "aria-label": spoken, class: "strip" }, ...bars);
    const at = (event) => tokens[Math.floor(((event.clientX - strip.getBoundingClientRect().left) / strip.clientWidth) * most)];
    strip.addEventListener("pointermove", (event) => { if (at(event)) this.browser.look(this, at(event), false); });
    strip.addEventListener("click", (event) => { if (at(event)) this.browser.pin(this, at(event)); });
    return strip;
  }

  /** Hide all but the first of many tokens that are the same, until somebody asks for one of them. */
  fold(tokens) {
    this.unfold = new Map(); // by position
    for (let start = 0, end; start < tokens.length; start = end) {
      for (end = start + 1; tokens[end]?.text === tokens[start].text && !tokens[end].first; end += 1);
      if (end - start < FOLDED) continue;
      const hidden = tokens.slice(start + 1, end).map(({ position }) => this.element_of(position));
      const more = make("button", "fold", `× ${end - start}`);
      const open = () => { more.remove(); for (const element of hidden) element.hidden = false; };
      hidden.forEach((element, n) => { element.hidden = true; this.unfold.set(start + 1 + n, open); });
      more.type = "button";
      more.addEventListener("click", open);
      hidden[0].before(more);
    }
  }

  parts(group, token) {
    const parts = [];
    if (token.text.startsWith(" ") && token.position) parts.push(" ");
    if (token.first) {
      parts.push(make("span", "parted", "≠"));
      parts[parts.length - 1].title = "Here the answer first differs from full depth’s";
    }
    const element = make("span", `token exit-${token.exit}${token.differs ? " differs" : ""}`, make("bdi", "", shown(token.text, CLIPPED)));
    element.append(make("sub", "", String(token.exit)));
    element.dataset.position = token.position;
    element.tabIndex = -1;
    element.setAttribute("role", "option");
    element.setAttribute("aria-selected", "false");
    const full = token.differs ? ", differs from full depth" : "";
    element.setAttribute("aria-label", `${shown(token.text, CLIPPED)}, block ${token.exit} of ${group.blocks}${full}`);
    parts.push(element);
    if (token.text.trimStart() === "" && token.text.includes("\n")) parts.push(document.createElement("br"));
    return parts;
  }

  sums(group, answer) {
    const n = answer.tokens.length;
    if (!n) return `0 ${group.noun}s`;
    if (group.entry.classifies) return group.sums(answer);
    const mean = answer.tokens.reduce((sum, token) => sum + token.exit, 0) / n;
    const parts = [`${n} tokens`, `mean exit ${decimal(mean, 1)} of ${group.blocks} blocks`];
    if (answer.compared && !group.entry.runs[answer.run].full) {
      const differing = answer.tokens.filter((token) => token.differs).length;
      parts.push(differing ? `${n - differing} as full depth, first difference at token ${answer.shared + 1}` : "all as full depth");
    }
    const score = group.documentScore(answer.run, answer.document);
    if (score !== null) parts.push(`${group.header.metric} ${decimal(score, 1)}`);
    return parts.join(" · ");
  }

  element_of(position) {
    const element = this.text.querySelector(`[data-position="${position}"]`);
    if (element?.hidden) this.unfold.get(position)();
    return element;
  }

  /** The next position, in a direction, that is not folded; where all are, the first of them. */
  past_folds(position, direction) {
    let found = position;
    const folded = () => this.text.querySelector(`[data-position="${found}"]`)?.hidden;
    while (direction && folded()) found += direction;
    return found in this.answer.tokens ? found : position;
  }

  mark(name, position) {
    for (const element of this.text.querySelectorAll(`.${name}`)) element.classList.remove(name);
    if (position !== null) this.element_of(position)?.classList.add(name);
  }

  /** Make a token the one that Tab reaches. */
  reach(position) {
    for (const element of this.text.querySelectorAll('[tabindex="0"]')) element.tabIndex = -1;
    this.element_of(position).tabIndex = 0;
  }

  key(event) {
    const element = event.target.closest("[data-position]");
    if (!element || event.ctrlKey || event.metaKey || event.altKey) return;
    const position = Number(element.dataset.position);
    const last = this.answer.tokens.length - 1;
    const on = this.text.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
    const back = this.text.dir === "rtl" ? "ArrowRight" : "ArrowLeft";
    const to = { [on]: position + 1, ArrowDown: position + 1, [back]: position - 1, ArrowUp: position - 1, Home: 0, End: last }[event.key];
    if (to !== undefined) this.element_of(this.past_folds(Math.min(Math.max(to, 0), last), Math.sign(to - position))).focus();
    else if (event.key === "Enter" || event.key === " ") this.browser.pin(this, this.answer.tokens[position]);
    else if (event.key === "Escape") this.browser.unpin();
    else return;
    event.preventDefault();
  }
}
