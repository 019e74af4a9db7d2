"use strict";
// The document browser's data: bytes that reports/documents.py packed, unpacked when they are looked at.

/** A gzip of bytes, undone by the browser. */
async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function littleEndian(bytes) {
  return bytes[0] + bytes[1] * 256 + bytes[2] * 65536 + bytes[3] * 16777216;
}

/** All groups of runs over the same documents, each unpacked once. */
class TracePayload {
  static async open(base64) {
    const text = atob(base64.trim());
    const bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n += 1) bytes[n] = text.charCodeAt(n);
    const end = 4 + littleEndian(bytes);
    const index = JSON.parse(new TextDecoder().decode(await inflated(bytes.subarray(4, end))));
    return new TracePayload(index, bytes.subarray(end));
  }

  constructor(index, packs) {
    this.groups = index.groups;
    this.shades = index.shades;
    this.packs = packs;
    this.opened = new Map();
  }

  group(number) {
    if (!this.opened.has(number)) this.opened.set(number, this.unpack(this.groups[number]));
    return this.opened.get(number);
  }

  async unpack(entry) {
    const plain = await inflated(this.packs.subarray(entry.offset, entry.offset + entry.length));
    const end = 4 + littleEndian(plain);
    const header = JSON.parse(new TextDecoder().decode(plain.subarray(4, end)));
    const columns = {};
    for (const [name, [offset, count, planes]] of Object.entries(header.columns)) {
      const values = new Uint32Array(count);
      for (let plane = 0; plane < planes; plane += 1) {
        const start = end + offset + plane * count;
        for (let n = 0; n < count; n += 1) values[n] += plain[start + n] * 256 ** plane;
      }
      columns[name] = { values, none: 256 ** planes - 1 };
    }
    return new (entry.classifies ? ClassifiedGroup : TraceGroup)(entry, header, columns);
  }
}

/** The answers of runs over the same documents; runs and documents by number, blocks and positions from 0. */
class TraceGroup {
  constructor(entry, header, columns) {
    Object.assign(this, { entry, header, columns });
    this.blocks = entry.blocks;
    this.documents = entry.documents.length;
    this.starts = TraceGroup.sums(columns.length.values);
    this.probeStarts = TraceGroup.sums(columns.probed.values);
    this.full = entry.runs.findIndex((run) => run.full);
    this.noun = "token"; // what leaves
  }

  static sums(lengths) {
    const starts = [0];
    for (const length of lengths) starts.push(starts[starts.length - 1] + length);
    return starts;
  }

  /** A number of a column, or null where there is none. */
  value(column, place) {
    const { values, none } = this.columns[column];
    return values[place] === none ? null : values[place];
  }

  text(place) {
    return place === null ? null : this.header.texts[place];
  }

  tokenPlaces(run, document) {
    const from = this.starts[run * this.documents + document];
    return this.columns.token.values.subarray(from, this.starts[run * this.documents + document + 1]);
  }

  answerText(run, document) {
    return [...this.tokenPlaces(run, document)].map((place) => this.header.texts[place]).join("").trim();
  }

  /** What a document is called in lists. */
  title(run, document) {
    return this.answerText(run, document);
  }

  /** What the probe has of the reference: as many tokens as full depth's answer has. */
  referenceText(document) {
    const words = [];
    for (let place = this.probeStarts[document]; place < this.probeStarts[document + 1]; place += 1) {
      words.push(this.text(this.value("gold_token_id", place)) ?? "");
    }
    return words.join("").trim();
  }

  documentScore(run, document) {
    const score = this.value("document_score", run * this.documents + document);
    return score === null ? null : score / 100;
  }

  scaled(steps, none, [low, high]) {
    return low + (steps / (none - 1)) * (high - low);
  }

  /** A run's answer: its tokens, and how many it has in common with full depth's from the first on. */
  answer(run, document) {
    const own = this.tokenPlaces(run, document);
    const reference = this.full < 0 ? null : this.tokenPlaces(this.full, document);
    const start = this.starts[run * this.documents + document];
    let shared = 0;
    while (reference && shared < own.length && shared < reference.length && own[shared] === reference[shared]) shared += 1;
    const probed = this.columns.probed.values[document];
    const tokens = [...own].map((place, position) => {
      const steps = this.value("score", start + position);
      const said = reference && position < reference.length ? reference[position] : null;
      return {
        position,
        text: this.header.texts[place],
        exit: this.columns.exit.values[start + position],
        reason: this.header.reasons[this.columns.reason.values[start + position]],
        score: steps === null ? null : this.scaled(steps, this.columns.score.none, this.header.score_range[run]),
        full: this.text(said),
        differs: reference !== null && said !== place,
        first: reference !== null && position === shared && said !== place,
        // The probe went along full depth's answer: it says something here only if what came before is the same.
        probe: reference !== null && position <= shared && position < probed ? this.probeStarts[document] + position : null,
      };
    });
    return { run, document, tokens, shared: reference ? shared : own.length, compared: reference !== null };
  }

  /** How much there is to see in an answer that is not too long: other tokens than full depth's, then many depths. */
  events(run, document) {
    const { tokens, shared } = this.answer(run, document);
    if (tokens.length > 80) return 0;
    return new Set(tokens.map((token) => token.exit)).size + (shared < tokens.length ? this.blocks : 0);
  }

  /** The run that is recommended; where none is, the one with most to see, one with a threshold if there is any. */
  opening() {
    if (this.entry.recommended >= 0) return this.entry.recommended;
    const few = this.entry.documents.slice(0, 20);
    const sums = this.entry.runs.map(({ threshold }, run) =>
      few.reduce((sum, _, document) => sum + this.events(run, document) / (threshold ? 1 : 1000), 0),
    );
    return sums.indexOf(Math.max(...sums));
  }

  eventful(run) {
    const counts = this.entry.documents.map((_, document) => this.events(run, document));
    return counts.indexOf(Math.max(...counts));
  }

  /** How many blocks ran for a token after the first that had full depth's on top. */
  wasted(token) {
    return token.probe === null ? 0 : token.exit - this.columns.first_match.values[token.probe];
  }

  /** By how much full depth's most probable token leads, in steps of 1/255. */
  lastMargin(token) {
    if (token.probe === null) return 1;
    const n = token.probe * this.blocks + this.blocks - 1;
    return (this.columns.p1.values[n] - this.columns.p2.values[n]) / 255;
  }

  /** How far the answers of two runs to a document are from each other, the lowest rank the farthest; null: not at all. */
  disagreement(run, other, document) {
    const [a, b] = [this.tokenPlaces(run, document), this.tokenPlaces(other, document)];
    const differing = Array.from({ length: Math.max(a.length, b.length) }, (_, n) => n).filter((n) => a[n] !== b[n]);
    if (!differing.length) return null;
    const told = `${differing.length} of ${Math.max(a.length, b.length)} tokens differ`;
    return { document, position: Math.min(differing[0], a.length - 1), rank: -differing.length, told };
  }

  /** What the probe read out after each block at one place. */
  readOuts(place, run) {
    const gate = this.header.gate[run];
    return Array.from({ length: this.blocks }, (_, block) => {
      const n = place * this.blocks + block;
      const steps = gate === null ? null : this.value(`gate${gate}`, n);
      return {
        top: [1, 2, 3].map((rank) => ({
          place: this.value(`top${rank}_id`, n),
          text: this.text(this.value(`top${rank}_id`, n)),
          p: this.columns[`p${rank}`].values[n] / 255,
        })),
        rank: this.columns.rank_final.values[n],
        rankIsMost: this.columns.rank_final.values[n] >= this.columns.rank_final.none - 1,
        p: this.columns.p_final.values[n] / 255,
        gate: steps === null ? null : this.scaled(steps, this.columns[`gate${gate}`].none, this.header.gate_range[gate]),
      };
    });
  }
}
