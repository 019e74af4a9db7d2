"use strict";
// What the chart can show across and up, and its points in words.
const number = (value, digits = 2) => value.toFixed(digits).replace(/\.?0+$/, "");
// An error that is 2 % above full depth's is 98 % of its quality.
const chartShare = (p, value) =>
  value === undefined || !p.full_value ? undefined : 100 * (p.lower_is_better ? 2 - value / p.full_value : value / p.full_value);
// less: fewer is better. merit: more is better
const CHART_X = {
  speedup: { title: "measured speed-up over full depth, of whole requests", at: (p) => p.speedup, low: (p) => p.speedup_low, high: (p) => p.speedup_high },
  token: { title: "measured speed-up over full depth, of decoding a token", at: (p) => p.speedup_per_token },
  energy: { title: "measured energy of full depth over the method's, of whole requests", at: (p) => p.energy_ratio, low: (p) => p.energy_ratio_low, high: (p) => p.energy_ratio_high },
  blocks: { title: "mean blocks run, share of all blocks", at: (p) => p.mean_blocks_run / p.blocks, less: true },
  depth: { title: "mean exit layer, share of all blocks", at: (p) => p.mean_exit_layer / p.blocks, less: true },
  ideal: { title: "ideal speed-up: full depth's bytes read over the method's, of decoding", at: (p) => p.ideal_speedup_bytes },
};
const CHART_Y = {
  relative: { title: "quality, % of full depth's", at: (p) => chartShare(p, p.value), low: (p) => chartShare(p, p.ci_low), high: (p) => chartShare(p, p.ci_high), merit: (p) => chartShare(p, p.value) },
  value: { title: "quality", at: (p) => p.value, low: (p) => p.ci_low, high: (p) => p.ci_high, merit: (p) => (p.lower_is_better ? -p.value : p.value) },
};
const CHART_MARKS = {
  o: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  s: "M-3.6-3.6h7.2v7.2h-7.2z",
  "^": "M0-4.6L4.4 3.6H-4.4z",
  v: "M0 4.6L4.4-3.6H-4.4z",
  "<": "M-4.6 0L3.6-4.4V4.4z",
  D: "M0-4.8L4.8 0L0 4.8L-4.8 0z",
  d: "M0-5.4L3.2 0L0 5.4L-3.2 0z",
  P: "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
  X: "M-4.4-2.6L-2.6-4.4L0-1.8L2.6-4.4L4.4-2.6L1.8 0L4.4 2.6L2.6 4.4L0 1.8L-2.6 4.4L-4.4 2.6L-1.8 0z",
  h: "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4z",
  "*": "M0-5.4L1.6-1.7L5.3-1.5L2.4.9L3.4 4.6L0 2.6L-3.4 4.6L-2.4.9L-5.3-1.5L-1.6-1.7z",
};
const chartWords = (p) =>
  `${p.label}${p.simulated ? " (simulated)" : ""} · ${p.model} · ${p.task} · ` +
  [
    `${p.metric} ${p.value === undefined ? "not measured" : number(p.value)}` + (p.ci_low === undefined ? "" : ` [${number(p.ci_low)}, ${number(p.ci_high)}]`) +
      (p.full_value === undefined ? "" : `, full depth ${number(p.full_value)}`),
    p.delta_low === undefined ? "" : `Δ ${number(p.delta)} [${number(p.delta_low)}, ${number(p.delta_high)}]`,
    p.mean_exit_layer === undefined ? "" : `exit layer ${number(p.mean_exit_layer)} of ${p.blocks}`,
    p.mean_blocks_run === undefined ? "" : `blocks run ${number(p.mean_blocks_run)}`,
    p.speedup === undefined || p.full ? "" : `speed-up ${number(p.speedup)}` + (p.speedup_low === undefined ? "" : ` [${number(p.speedup_low)}, ${number(p.speedup_high)}]`),
    p.speed_status === "not measurable" ? "speed-up not measurable now" : "",
    p.aa_low === undefined ? "" : `full depth against itself [${number(p.aa_low)}, ${number(p.aa_high)}]`,
    p.is_other_length === undefined ? "" : `${p.is_other_length ? "† " : ""}${number(p.tokens_per_request, 1)} tokens, full depth ${number(p.full_tokens_per_request, 1)}`,
    p.speedup_per_token === undefined || p.full ? "" : `per token ${number(p.speedup_per_token)}`,
    p.speedup_decode === undefined || p.full ? "" : `decoding ${number(p.speedup_decode)}` + (p.ideal_speedup_decode === undefined ? "" : ` of ideal ${number(p.ideal_speedup_decode)}`),
    p.energy_ratio === undefined ? "" : `energy ${number(p.energy_ratio)}` + (p.energy_ratio_low === undefined ? "" : ` [${number(p.energy_ratio_low)}, ${number(p.energy_ratio_high)}]`),
    p.joules_per_token === undefined ? "" : `${number(p.joules_per_token, 4)} J a token, full depth ${number(p.full_joules_per_token, 4)}`,
    p.ideal_speedup_bytes === undefined ? "" : `ideal speed-up ${number(p.ideal_speedup_bytes)}×`,
    `n = ${p.n}` + (p.timed_documents === undefined ? "" : `, timed ${p.timed_documents}` + (p.timed_rounds === undefined ? "" : ` × ${p.timed_rounds}`)),
  ].filter(Boolean).join(" · ");
const chartElement = (parent, name, attributes, text) => {
  const element = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
