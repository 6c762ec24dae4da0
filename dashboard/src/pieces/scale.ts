// The timeline's arithmetic: a time scale that folds waits, and round times for its axis. Draws nothing.

export interface Fold {
  from: number;
  to: number;
  words: string;
}

export const NOTCH = 12;
const FOLD_SHARE = 0.03;

export interface Scale {
  x: (at: number) => number;
  at: (x: number) => number;
  folds: (Fold & { x: number })[];
}

/** Map times to pixels. A wait of more than 3 % of the whole becomes a notch of 12 px. */
export function scaleOf(from: number, to: number, width: number, waits: Fold[]): Scale {
  const whole = Math.max(1, to - from);
  const folded = waits
    .map((one) => ({ ...one, from: Math.max(from, one.from), to: Math.min(to, one.to) }))
    .filter((one) => one.to - one.from > whole * FOLD_SHARE)
    .sort((a, b) => a.from - b.from);
  const left = whole - folded.reduce((sum, one) => sum + one.to - one.from, 0);
  const pixels = Math.max(1, width - folded.length * NOTCH) / Math.max(1, left);
  const x = (at: number): number => {
    let gone = 0;
    let notches = 0;
    for (const one of folded) {
      if (at <= one.from) break;
      const inside = Math.min(at, one.to) - one.from;
      gone += inside;
      notches += NOTCH * (inside / (one.to - one.from));
    }
    return (at - from - gone) * pixels + notches;
  };
  const at = (place: number): number => {
    let low = from;
    let high = to;
    for (let i = 0; i < 40; i++) {
      const middle = (low + high) / 2;
      if (x(middle) < place) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  };
  return { x, at, folds: folded.map((one) => ({ ...one, x: x(one.from) })) };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 14400e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3];

/** Round times for the axis, about `wanted` of them. */
export function ticksOf(from: number, to: number, wanted: number): number[] {
  const step = STEPS.find((one) => (to - from) / one <= wanted) ?? 30 * 86400e3;
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  const found: number[] = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return found;
}
