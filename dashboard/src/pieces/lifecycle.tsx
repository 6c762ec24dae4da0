// Where jobs are: the lifecycle with live counts. A small map for the overview, the whole diagram for its own page.
import { useEffect, useRef } from "preact/hooks";
import { DIAGRAM } from "../made/diagram";
import { EVENTS, STATES } from "../made/states";
import { pathOf } from "../router";
import type { Counts, State } from "../views";
import { Glyph } from "./glyph";
import { Fresh, number, useChanges } from "./words";

type Point = [x: number, y: number];

const COLUMN = 224;
const ROW = 80;
const WIDTH = 144;
const HEIGHT = 52;
const TOP = 32;
const ASIDE = 24;
const APART = 10;

/** The middle of each state's box. States that wait stand left, states that have ended stand right. */
const at = (column: number, row: number): Point => [column * COLUMN + WIDTH / 2, TOP + row * ROW];

const MIDDLES: Record<State, Point> = {
  scheduled: at(0, 0),
  pending: at(0, 1),
  retryable: at(0, 2),
  available: at(1, 1),
  active: at(2, 1),
  review: at(3, 1),
  completed: at(4, 0),
  cancelled: at(4, 1),
  discarded: at(4, 2),
};

interface Way {
  event: string;
  from: State;
  to: State;
  points: Point[];
}

/** A way between two boxes of one row. */
function along(event: string, from: State, to: State): Way {
  const [[x, y], [end]] = [MIDDLES[from], MIDDLES[to]];
  return { event, from, to, points: [[x + WIDTH / 2, y], [end - WIDTH / 2, y]] };
}

/** A way that leaves or meets the middle row upright, `aside` of the box's middle, and the outer row level, `apart` from its middle. */
function around(event: string, from: State, to: State, aside: number, apart: number): Way {
  const isLeaving = MIDDLES[from][1] === TOP + ROW;
  const [[x, y], [outerX, outerY]] = isLeaving ? [MIDDLES[from], MIDDLES[to]] : [MIDDLES[to], MIDDLES[from]];
  const level = outerY + apart;
  const side = outerX + (Math.sign(x - outerX) * WIDTH) / 2;
  const points: Point[] = [[x + aside, y + (Math.sign(outerY - y) * HEIGHT) / 2], [x + aside, level], [side, level]];
  return { event, from, to, points: isLeaving ? points : points.reverse() };
}

/** The way of a replay: under the boxes of the middle row, back to where jobs are ready. */
function back(event: string, from: State, to: State): Way {
  const [[x, y], [end]] = [MIDDLES[from], MIDDLES[to]];
  const bottom = y + HEIGHT / 2;
  return { event, from, to, points: [[x - ASIDE, bottom], [x - ASIDE, bottom + ASIDE], [end + ASIDE, bottom + ASIDE], [end + ASIDE, bottom]] };
}

const WAYS: Way[] = [
  around("promote", "scheduled", "available", 0, APART),
  along("activate", "pending", "available"),
  around("promote", "retryable", "available", -ASIDE, -APART),
  along("claim", "available", "active"),
  around("complete", "active", "completed", ASIDE, 0),
  along("exhaust", "active", "review"),
  around("rest", "active", "scheduled", -ASIDE, -APART),
  around("fail", "active", "retryable", -ASIDE, APART),
  back("replay", "review", "available"),
  around("discard", "review", "discarded", ASIDE, 0),
];

/** Where an event's word stands: over the middle of its longest level line. */
function wordOf({ points }: Way): Point {
  const spans = points.slice(1).map(([x], i): Point => [(x + points[i]![0]) / 2, Math.abs(x - points[i]![0])]);
  const longest = spans.reduce((best, one, i) => (one[1] > spans[best]![1] ? i : best), 0);
  return [spans[longest]![0], points[longest]![1] - 6];
}

const DOTS_MS = 250;
const TRAVEL_MS = 900;

/** Dots for jobs on their way, from how the counts changed: what left one state and what arrived in another. */
function useDots(counts: Counts) {
  const layer = useRef<SVGGElement>(null);
  const queue = useRef<Way[]>([]);
  const before = useRef(counts);
  useEffect(() => {
    for (const way of WAYS) {
      const { from, to } = way;
      const left = (before.current[from] ?? 0) - (counts[from] ?? 0);
      const arrived = (counts[to] ?? 0) - (before.current[to] ?? 0);
      const moved = to === "completed" || to === "review" ? arrived : Math.min(left, arrived);
      for (let i = 0; i < Math.min(4, moved) && queue.current.length < 8; i++) queue.current.push(way);
    }
    before.current = counts;
  }, [counts]);
  useEffect(() => {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const timer = setInterval(() => {
      const way = queue.current.shift();
      if (!way || !layer.current) return;
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      dot.setAttribute("r", "3.5");
      layer.current.append(dot);
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", bent(way.points));
      const length = path.getTotalLength();
      const frames = Array.from({ length: 13 }, (_, i) => {
        const { x, y } = path.getPointAtLength((length * i) / 12);
        return { transform: `translate(${x}px, ${y}px)` };
      });
      dot.animate(frames, { duration: TRAVEL_MS, easing: "ease-in-out" }).onfinish = () => dot.remove();
    }, DOTS_MS);
    return () => clearInterval(timer);
  }, []);
  return layer;
}

function Count({ of, x, y, anchor }: { of: number; x: number; y: number; anchor?: "middle" }) {
  const times = useChanges(of);
  return (
    <text key={times} class={times ? "n fresh" : "n"} x={x} y={y} text-anchor={anchor}>
      {number(of)}
    </text>
  );
}

export function LifecycleMap({ counts }: { counts: Counts }) {
  const dots = useDots(counts);
  return (
    <div class="life">
      <svg viewBox="0 0 1040 224" class="life-map" role="group" aria-label="Jobs by state">
        <defs>
          <marker id="tip" viewBox="0 0 8 8" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M0 1L8 4L0 7Z" />
          </marker>
        </defs>
        {WAYS.map((way) => {
          const [x, y] = wordOf(way);
          return (
            <g key={way.event + way.from}>
              <path class={`way${way.event === "claim" ? " main" : ""}`} d={bent(way.points)} marker-end="url(#tip)" />
              <text class="event" x={x} y={y} text-anchor="middle">
                {way.event}
              </text>
            </g>
          );
        })}
        <g ref={dots} class="dots" />
        {(Object.entries(MIDDLES) as [State, Point][]).map(([state, [x, y]]) => {
          const n = counts[state] ?? 0;
          return (
            <a key={state} href={pathOf("jobs", "", `state=${state}`)} class={`node is-${state}${n === 0 ? " zero" : ""}`} aria-label={`${number(n)} ${state}`}>
              <g transform={`translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`}>
                <rect width={WIDTH} height={HEIGHT} rx="8" />
                <g transform="translate(12 9)">
                  <Glyph state={state} size={14} />
                </g>
                <text class="w" x="34" y="20.5">
                  {state}
                </text>
                <Count of={n} x={34} y={41} />
              </g>
            </a>
          );
        })}
      </svg>
      <StateGrid counts={counts} />
    </div>
  );
}

export function StateGrid({ counts }: { counts: Counts }) {
  const order: State[] = ["scheduled", "available", "pending", "active", "retryable", "review", "completed", "discarded", "cancelled"];
  return (
    <div class="state-grid">
      {order.map((state) => (
        <a key={state} class={`is-${state}`} href={pathOf("jobs", "", `state=${state}`)}>
          <b>
            <Fresh of={number(counts[state] ?? 0)} />
          </b>
          <span>
            <Glyph state={state} size={12} /> {state}
          </span>
        </a>
      ))}
    </div>
  );
}

const CORNER = 12;
const HEAD = 8;

/** A path with round bends along horizontal and vertical lines. */
function bent(points: readonly (readonly number[])[]): string {
  const towards = (from: readonly number[], to: readonly number[]) => [from[0]! + Math.sign(to[0]! - from[0]!) * CORNER, from[1]! + Math.sign(to[1]! - from[1]!) * CORNER];
  let d = `M${points[0]!.join(" ")}`;
  for (let i = 1; i < points.length - 1; i++) {
    const bend = points[i]!;
    d += `L${towards(bend, points[i - 1]!).join(" ")}Q${bend.join(" ")} ${towards(bend, points[i + 1]!).join(" ")}`;
  }
  const [x, y] = points[points.length - 1]! as [number, number];
  const [bx, by] = points[points.length - 2]! as [number, number];
  return `${d}L${x - Math.sign(x - bx) * HEAD} ${y - Math.sign(y - by) * HEAD}`;
}

export function Diagram({ counts }: { counts: Counts }) {
  const meaning = (event: string) => EVENTS.find((one) => one.event === event)?.meaning ?? "";
  return (
    <div class="life">
      <svg viewBox={`14 48 ${DIAGRAM.width - 28} ${DIAGRAM.height - 84}`} class="diagram" role="group" aria-label="The lifecycle: nine states and eighteen events">
        <defs>
          {["none", "takes", "needs", "breaks"].map((lease) => (
            <marker key={lease} id={`head-${lease}`} viewBox="0 0 8 8" refX="0" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">
              <path class={lease} d="M0 0L8 4L0 8Z" />
            </marker>
          ))}
        </defs>
        {DIAGRAM.frames.map(({ event, box: [l, t, r, b], caption }) => (
          <g key={event}>
            <rect class="frame-box" x={l} y={t} width={r! - l!} height={b! - t!} rx="14" />
            <text class="caption" x={l! + 20} y={t! + 4}>
              {caption}
            </text>
          </g>
        ))}
        {DIAGRAM.arrows.map((one, i) => (
          <g key={i}>
            <title>{`${one.event}: ${meaning(one.event)}`}</title>
            <path class={`arrow ${one.lease}`} d={bent(one.points)} marker-end={`url(#head-${one.lease})`} />
            <text class={`event ${one.lease}`} x={one.label[0]} y={one.label[1]! + 4} text-anchor="middle">
              {one.event}
            </text>
          </g>
        ))}
        {(Object.entries(DIAGRAM.boxes) as [State, number[]][]).map(([state, [l, t, r, b]]) => {
          const x = (l! + r!) / 2;
          const y = (t! + b!) / 2;
          const n = counts[state] ?? 0;
          return (
            <a key={state} class={`node is-${state}${n === 0 ? " zero" : ""}`} href={pathOf("jobs", "", `state=${state}`)} aria-label={`${number(n)} ${state}: ${STATES[state].meaning}`}>
              <title>{STATES[state].meaning}</title>
              <rect x={l} y={t} width={r! - l!} height={b! - t!} rx="9" />
              <Count of={n} x={x} y={y + 1} anchor="middle" />
              <text class="w" x={x} y={y + 18} text-anchor="middle">
                {state}
              </text>
            </a>
          );
        })}
      </svg>
      <StateGrid counts={counts} />
    </div>
  );
}

