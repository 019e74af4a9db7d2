"use strict";
// Where something happens in the answers of a group: places to go to, the most telling first.

const NEAR_TIE = 0.1; // between the probabilities of full depth's two best tokens
const MOST_PLACES = 50;

const EVENTS = {
  /** Exits before the last block that first lead away from full depth's answer. */
  wrongExits: (group, run) =>
    places(group, run, (token) => (token.first && token.exit < group.blocks ? token.exit : null)).map((place) => ({
      ...place,
      told: `left after block ${place.token.exit} of ${group.blocks} with another token than full depth`,
    })),

  /** Tokens that ran most blocks after the first that had full depth's token on top. */
  waste: (group, run) =>
    places(group, run, (token) => {
      const wasted = token.probe === null ? 0 : token.exit - group.columns.first_match.values[token.probe];
      return wasted > 0 ? -wasted : null;
    }).map((place) => ({ ...place, told: `${-place.rank} blocks after the first that had full depth’s token` })),

  /** Tokens between which full depth itself hardly decides. */
  nearTies: (group, run) =>
    places(group, run, (token) => {
      const margin = token.probe === null ? 1 : group.lastMargin(token.probe);
      return margin < NEAR_TIE ? margin : null;
    }).map((place) => ({ ...place, told: `full depth’s two best tokens are ${decimal(place.rank)} apart` })),

  /** Documents in which two runs have most tokens that differ, each at its first. */
  disagreements: (group, run, other) =>
    group.entry.documents
      .map((_, document) => {
        const [a, b] = [group.tokenPlaces(run, document), group.tokenPlaces(other, document)];
        const differing = Array.from({ length: Math.max(a.length, b.length) }, (_, n) => n).filter((n) => a[n] !== b[n]);
        const told = `${differing.length} of ${Math.max(a.length, b.length)} tokens differ`;
        return { document, position: Math.min(differing[0] ?? 0, a.length - 1), rank: -differing.length, told };
      })
      .filter(({ rank }) => rank < 0)
      .sort((a, b) => a.rank - b.rank),
};

/** Tokens of a run that have a rank, the lowest first; those of one rank in their order. */
function places(group, run, rankOf) {
  const found = group.entry.documents.flatMap((_, document) =>
    group.answer(run, document).tokens.map((token) => ({ document, position: token.position, token, rank: rankOf(token) })),
  );
  return found.filter(({ rank }) => rank !== null).sort((a, b) => a.rank - b.rank).slice(0, MOST_PLACES);
}
