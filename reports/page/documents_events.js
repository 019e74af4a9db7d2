"use strict";
// Where something happens in the answers of a group: places to go to, the most telling first.

const NEAR_TIE = 0.1; // between the probabilities of full depth's two best tokens
const MOST_PLACES = 50;

const EVENTS = {
  /** Exits before the last block that first lead away from full depth's answer. */
  wrongExits: (group, run) =>
    places(group, run, (token) => (token.first && token.exit < group.blocks ? token.exit : null)).map((place) => ({
      ...place,
      told: `exited after block ${place.token.exit} of ${group.blocks} with another ${group.noun} than full depth`,
    })),

  /** What ran most blocks after the first that had full depth's token on top. */
  waste: (group, run) =>
    places(group, run, (token) => (group.wasted(token) > 0 ? -group.wasted(token) : null)).map((place) => ({
      ...place,
      told: `${-place.rank} blocks after the first that had full depth’s ${group.noun}`,
    })),

  /** Tokens between which full depth itself hardly decides. */
  nearTies: (group, run) =>
    places(group, run, (token) => (group.lastMargin(token) < NEAR_TIE ? group.lastMargin(token) : null)).map((place) => ({
      ...place,
      told: `full depth’s two best ${group.noun}s are ${decimal(place.rank)} apart`,
    })),

  /** Documents in which two runs differ most, each at its first token that does. */
  disagreements: (group, run, other) =>
    group.entry.documents
      .map((_, document) => group.disagreement(run, other, document))
      .filter((place) => place !== null)
      .sort((a, b) => a.rank - b.rank),
};

/** Tokens of a run that have a rank, the lowest first; those of one rank in their order. */
function places(group, run, rankOf) {
  const found = group.entry.documents.flatMap((_, document) =>
    group.answer(run, document).tokens.map((token) => ({ document, position: token.position, token, rank: rankOf(token) })),
  );
  return found.filter(({ rank }) => rank !== null).sort((a, b) => a.rank - b.rank).slice(0, MOST_PLACES);
}
