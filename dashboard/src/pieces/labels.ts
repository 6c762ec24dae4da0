// Where the words of a picture stand: beside their place, without lying over each other or beyond the edge. Draws nothing.

export interface Label {
  words: string;
  /** The place that it names, in pixels. */
  x: number;
  kind: string;
}

export interface Placed extends Label {
  left: number;
  row: number;
}

const ASIDE = 5;
const APART = 8;
/** Figures of one width, as the pages have them, are wider than those that a canvas measures. */
const TABULAR = 1.07;

let pen: CanvasRenderingContext2D | null | undefined;

/** How wide words are in the pictures' type. */
export function widthOf(words: string, font = "500 11.5px Geist, sans-serif"): number {
  pen ??= document.createElement("canvas").getContext("2d");
  if (!pen) return words.length * 6.5;
  pen.font = font;
  return pen.measureText(words).width * TABULAR;
}

/** Give each label a row, the first ones first: right of its place, left of it, or within the edges. Without room, it is left out. */
export function placeLabels(labels: Label[], rows: number, width: number): Placed[] {
  const placed: (Placed & { right: number })[] = [];
  for (const one of labels) {
    const wide = widthOf(one.words);
    if (wide > width) continue;
    const within = Math.max(0, Math.min(width - wide, one.x + ASIDE));
    const tries = [one.x + ASIDE, one.x - ASIDE - wide, within].filter((left) => left >= 0 && left + wide <= width);
    const spots = Array.from({ length: rows }, (_, row) => tries.map((left) => ({ row, left }))).flat();
    const free = spots.find(({ row, left }) => !placed.some((other) => other.row === row && left < other.right + APART && other.left < left + wide + APART));
    if (free) placed.push({ ...one, ...free, right: free.left + wide });
  }
  return placed;
}

/** The places along an axis that keep their words apart, and these words' left edges. */
export function spread<T>(places: { of: T; x: number; words: string }[], width: number): { of: T; x: number; words: string; left: number }[] {
  const kept: { of: T; x: number; words: string; left: number }[] = [];
  let free = 0;
  for (const one of places) {
    const wide = widthOf(one.words, "400 11.5px Geist, sans-serif");
    const left = Math.max(0, Math.min(width - wide, one.x - wide / 2));
    if (left < free) continue;
    kept.push({ ...one, left });
    free = left + wide + APART;
  }
  return kept;
}
