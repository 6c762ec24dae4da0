// The timeline: workers as bands, stages as rows, lanes for what ran at once, a dashed line where a worker was lost.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "../api";
import { clock, now, short, span } from "../clock";
import type { JobPage, Timeline } from "../views";
import { Button, Card } from "./card";
import { placeLabels, spread, widthOf } from "./labels";
import { readable } from "./words";
import { NOTCH, scaleOf, ticksOf } from "./scale";

const LANE = 9;
const GAP = 10;
const BAND = 54;
const LABEL_ROWS = 2;
const LABEL_TOP = 31;
const LABEL_HEIGHT = 13;
const BAND_PAD = 6;
const AXIS = 22;
const END_ROOM = 34;
const AGAIN_MS = 900;

/** Read the timeline, and read it again when the job has changed: at most about once a second. */
export function useTimeline(view: JobPage): Timeline | null {
  const [line, setLine] = useState<Timeline | null>(null);
  const asked = useRef(0);
  const answered = useRef(0);
  useEffect(() => {
    const read = () => {
      const at = (asked.current = Date.now());
      get<Timeline>(`/api/v1/jobs/${view.job.id}/timeline`).then(
        // An answer counts although the job has changed meanwhile: one that changes often would never have a timeline.
        (found) => {
          if (at < answered.current) return;
          answered.current = at;
          setLine(found);
        },
        () => undefined,
      );
    };
    const timer = setTimeout(read, Math.max(0, asked.current + AGAIN_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [view]);
  return line;
}

interface Row {
  name: string;
  top: number;
  height: number;
}

function rowsOf(line: Timeline, stages: string[]): { rows: Row[]; height: number } {
  const lanes = new Map(line.rows.map((one) => [one.stage, one.lanes]));
  let top = BAND;
  const rows = [...new Set([...stages, ...lanes.keys()])].map((name) => {
    const row = { name, top, height: Math.max(14, (lanes.get(name) ?? 1) * LANE) };
    top += row.height + GAP;
    return row;
  });
  return { rows, height: top };
}

function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!box.current) return;
    const watch = new ResizeObserver(([one]) => setWidth(Math.floor(one!.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

export function TimelineCard({ line, view, open }: { line: Timeline | null; view: JobPage; open: (path: string) => void }) {
  return line && line.bars.length > 0 ? <Plot line={line} view={view} open={open} /> : null;
}

function Plot({ line, view, open }: { line: Timeline; view: JobPage; open: (path: string) => void }) {
  const [box, width] = useWidth();
  const [zoom, setZoom] = useState<[number, number] | null>(null);
  const [drag, setDrag] = useState<[number, number] | null>(null);
  const start = Date.parse(line.start);
  const isOver = view.job.finished_at !== null;
  const end = isOver ? line.end : Math.max(line.end, now.value - start);
  const narrow = width < 560;
  const left = narrow ? 0 : 132;
  const shift = narrow ? 16 : 0;
  const { rows, height } = rowsOf(line, view.stages.map((one) => one.name));
  const at_once = Math.max(0, ...line.rows.map((one) => one.lanes));
  const [from, to] = zoom ?? [0, end];
  const inner = Math.max(40, width - left - (isOver ? 4 : END_ROOM));
  const waits = line.gaps.filter((one) => one.kind !== "lost").map((one) => ({ words: one.words, from: one.at, to: one.end ?? end }));
  const losses = line.gaps.filter((one) => one.kind === "lost");
  const scale = scaleOf(from, to, inner, waits);
  const X = (at: number) => left + scale.x(Math.min(to, Math.max(from, at)));
  const seen = (a: number, b: number) => b >= from && a <= to;
  const tall = height + (narrow ? rows.length * shift : 0);
  const row = new Map(rows.map((one, i) => [one.name, { ...one, top: one.top + (narrow ? (i + 1) * shift : 0) }]));
  const lanesIn = new Map(line.rows.map((one) => [one.stage, one.lanes]));
  const barEnd = (bar: Timeline["bars"][number]) => (bar.state === "running" && !isOver ? end : bar.end);
  const clockOf = (at: number) => clock(start + at, to - from < 240_000);
  const inFold = (at: number) => scale.folds.some((one) => one.from < at && at < one.to);
  const ticks = spread(
    ticksOf(start + from, start + to, narrow ? 3 : 7)
      .map((at) => at - start)
      .filter((at) => !inFold(at))
      .map((at) => ({ of: at, x: X(at), words: clockOf(at) })),
    width,
  );
  const labels = placeLabels(
    [
      ...(!isOver && !zoom ? [{ words: "now", x: X(end), kind: "now" }] : []),
      ...losses.filter((one) => seen(one.at, one.end ?? end)).map((one) => ({ words: one.words, x: X(one.at), kind: "loss" })),
      ...scale.folds.map((one) => ({ words: one.words, x: left + one.x + NOTCH / 2, kind: "fold" })),
    ],
    LABEL_ROWS,
    width,
  );
  /** As much of a worker's name as its band has room for. */
  const bandWords = (worker: string, epoch: number, room: number) => [`${worker}, epoch ${epoch}`, worker, `${epoch}`].find((words) => widthOf(words) <= room - 2 * BAND_PAD) ?? "";

  const place = (event: PointerEvent) => event.clientX - (event.currentTarget as Element).getBoundingClientRect().left - left;
  const lift = () => {
    if (drag && Math.abs(drag[1] - drag[0]) > 6) {
      const [a, b] = [...drag].sort((x, y) => x - y).map((x) => scale.at(x));
      if (b! - a! > 10) setZoom([a!, b!]);
    }
    setDrag(null);
  };
  const attempt = (event: MouseEvent) => {
    const at = scale.at(event.clientX - (event.currentTarget as Element).getBoundingClientRect().left - left);
    const band = line.bands.find((one) => one.at <= at && at <= (one.end ?? end));
    if (band) setZoom([band.at, band.end ?? end]);
  };

  return (
    <Card
      title="Timeline"
      class="timeline"
      note={`${clockOf(from)} to ${clockOf(to)}, ${span(to - from)}${line.is_cut ? "; the newest steps are left out" : ""}`}
      right={
        <>
          {at_once > 1 && <span class="chip">{at_once} at once</span>}
          <Button small keys="F" onClick={() => setZoom(null)} disabled={!zoom}>
            Fit
          </Button>
        </>
      }
    >
      <div class="plot" ref={box}>
        {width > 0 && (
          <svg
            width={width}
            height={tall + AXIS}
            role="img"
            aria-label={`Timeline of ${line.bars.length} steps in ${rows.length} stages${losses.map((one) => `; ${one.words}`).join("")}`}
            onPointerDown={(event) => event.button === 0 && event.pointerType === "mouse" && setDrag([place(event), place(event)])}
            onPointerMove={(event) => drag && setDrag([drag[0], place(event)])}
            onPointerUp={lift}
            onPointerLeave={() => setDrag(null)}
            onDblClick={attempt}
            onClick={(event) => {
              const path = (event.target as SVGElement).dataset?.path;
              if (path && !zoom && !drag) open(path);
            }}
          >
            <defs>
              <pattern id="cut" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
                <rect width="6" height="6" class="cut-ground" />
                <rect width="3" height="6" class="cut-line" />
              </pattern>
            </defs>
            {ticks.map((one) => (
              <g key={one.of} class="tick">
                <line x1={one.x} x2={one.x} y1={BAND - 6} y2={tall} />
                <text x={one.left} y={tall + 15}>
                  {one.words}
                </text>
              </g>
            ))}
            {!narrow && (
              <text class="name off" x={0} y={15}>
                worker
              </text>
            )}
            {line.bands.filter((one) => seen(one.at, one.end ?? end)).map((one) => {
              const [a, b] = [X(one.at), X(one.end ?? end)];
              return (
                <g key={one.epoch}>
                  <title>{`${one.worker}, epoch ${one.epoch}${one.how ? `: ${one.how}` : ""}`}</title>
                  <rect class={`band${one.how === "lost" ? " lost" : ""}`} x={a} y={4} width={Math.max(2, b - a)} height={15} />
                  <text x={a + BAND_PAD} y={15.5}>
                    {bandWords(one.worker, one.epoch, b - a)}
                  </text>
                </g>
              );
            })}
            {scale.folds.map((one) => (
              <g key={one.from} class="fold">
                <title>{one.words}</title>
                <path d={`M${left + one.x} ${BAND - 6}h${NOTCH}v${tall - BAND + 6}h-${NOTCH}z`} />
              </g>
            ))}
            {[...row.values()].map((one) => (
              <g key={one.name}>
                <text class={`name${lanesIn.has(one.name) ? "" : " off"}`} x={0} y={narrow ? one.top - 5 : one.top + one.height / 2 + 4}>
                  {one.name.length > 19 && !narrow ? `${readable(one.name).slice(0, 18)}…` : readable(one.name)}
                </text>
                {!lanesIn.has(one.name) && !isOver && <line class="ahead" x1={width - END_ROOM + 6} x2={width - 2} y1={one.top + 7} y2={one.top + 7} />}
              </g>
            ))}
            {line.bars.filter((one) => seen(one.at, barEnd(one))).map((one) => {
              const stage = line.rows[one.row]!.stage;
              const place = row.get(stage)!;
              const words = one.count && one.count > 1 ? `${one.count} steps` : one.name || one.path || stage;
              return (
                <rect
                  key={`${one.row} ${one.lane} ${one.at} ${one.state}`}
                  class={`bar ${one.state}`}
                  data-path={one.path || undefined}
                  x={X(one.at)}
                  y={place.top + one.lane * LANE + (lanesIn.get(stage) === 1 ? 3 : 0)}
                  width={Math.max(1.5, X(barEnd(one)) - X(one.at) - 0.75)}
                  height={LANE - 2}
                  rx={2}
                >
                  <title>{`${words}: ${one.state === "cut" ? "cut by the loss" : one.state}, ${short(barEnd(one) - one.at)}`}</title>
                </rect>
              );
            })}
            {labels.map((one) => (
              <g key={`${one.kind} ${one.x}`} class={one.kind}>
                <text x={one.left} y={LABEL_TOP + one.row * LABEL_HEIGHT}>
                  {one.words}
                </text>
              </g>
            ))}
            {losses.filter((one) => seen(one.at, one.end ?? end)).map((one) => (
              <g key={one.at} class="loss">
                <title>{one.words}</title>
                <line x1={X(one.at)} x2={X(one.at)} y1={2} y2={tall} />
              </g>
            ))}
            {!isOver && !zoom && (
              <g class="now">
                <line x1={X(end)} x2={X(end)} y1={2} y2={tall} />
              </g>
            )}
            {drag && <rect class="brush" x={left + Math.min(...drag)} width={Math.abs(drag[1] - drag[0])} y={BAND - 6} height={tall - BAND + 6} />}
          </svg>
        )}
      </div>
    </Card>
  );
}
