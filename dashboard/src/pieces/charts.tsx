// The overview's small pictures: finished per minute, money, queues, slots. Own SVG and CSS, no library.
import { clock } from "../clock";
import { pathOf } from "../router";
import { type CostLine, countsOf, type MinuteCounts, type MoneySeen, type QueueBar as Queue, type State, type WorkerDot } from "../views";
import { local, number, readable } from "./words";

const COLUMNS = 60;
const W = 560;
const H = 168;
const LEFT = 30;
const BOTTOM = 20;
const TOP = 22;
/** How wide the words beside a line are: lines that are closer share those of the first. */
const LABEL = 90;

const TOPS = [3, 6, 9, 12, 15, 30, 60, 90, 120, 150];

function roundUp(n: number): number {
  for (let size = 1; ; size *= 100) for (const top of TOPS) if (top * size >= n) return top * size;
}

/** How jobs end, from the bottom of a column to its top. */
const ENDS = ["completed", "cancelled", "discarded"] as const;

export function EndsLegend() {
  return (
    <span class="legend" aria-hidden="true">
      {ENDS.map((state) => (
        <span key={state} class={`is-${state}`}>
          {state}
        </span>
      ))}
    </span>
  );
}

export function Finished({ of }: { of: MinuteCounts }) {
  const [ended, cancelled, discarded, lost] = [of.ended, of.cancelled, of.discarded, of.lost].map((one) => one.slice(-COLUMNS)) as [number[], number[], number[], number[]];
  const start = Date.parse(of.first!) + (of.ended.length - ended.length) * 60_000;
  const most = roundUp(Math.max(3, ...ended));
  const step = (W - LEFT) / COLUMNS;
  const first = COLUMNS - ended.length;
  const y = (n: number) => TOP + (H - TOP - BOTTOM) * (1 - n / most);
  const at = (i: number) => clock(start + i * 60_000, false);
  return (
    <svg class="chart" viewBox={`0 0 ${W} ${H}`} role="img" aria-label={local(of.words)}>
      {[0, 1, 2, 3].map((i) => (
        <g key={i} class="tick">
          <line x1={LEFT} x2={W} y1={y((most * i) / 3)} y2={y((most * i) / 3)} />
          <text x={LEFT - 8} y={y((most * i) / 3) + 4} text-anchor="end">
            {(most * i) / 3}
          </text>
        </g>
      ))}
      {ended.map((n, i) => (
        <g key={start + i}>
          <title>{`${at(i)}: ${said(n, cancelled[i]!, discarded[i]!)}`}</title>
          {stack(n - cancelled[i]! - discarded[i]!, cancelled[i]!, discarded[i]!).map(
            ([state, from, to]) => to > from && <rect key={state} class={`is-${state}`} x={LEFT + (first + i) * step} width={step - 2} y={y(to)} height={y(from) - y(to)} rx={1.5} />,
          )}
          {i % 15 === 0 && i < ended.length - 5 && (
            <text x={LEFT + (first + i) * step} y={H - 4}>
              {at(i)}
            </text>
          )}
        </g>
      ))}
      <text x={W} y={H - 4} text-anchor="end">
        now
      </text>
      {lost.map((n, i) => {
        const x = LEFT + (first + i + 0.5) * step - 1;
        const words = n === 1 ? "a worker lost" : `${n} workers lost`;
        const hasRoom = !lost.slice(Math.max(0, i - Math.ceil(LABEL / step)), i).some((other) => other > 0);
        return (
          n > 0 && (
            <g key={i} class="loss">
              <title>{words}</title>
              <line x1={x} x2={x} y1={TOP - 12} y2={H - BOTTOM} />
              {hasRoom && (
                <text x={x > W / 2 ? x - 5 : x + 5} y={TOP - 6} text-anchor={x > W / 2 ? "end" : "start"}>
                  {words}
                </text>
              )}
            </g>
          )
        );
      })}
    </svg>
  );
}

/** The parts of a column: each state from where to where. */
function stack(...numbers: number[]): [string, number, number][] {
  let top = 0;
  return ENDS.map((state, i) => [state, top, (top += numbers[i]!)]);
}

const said = (ended: number, cancelled: number, discarded: number): string =>
  [`${ended} ended`, cancelled && `${cancelled} of them cancelled`, discarded && `${discarded} discarded`].filter(Boolean).join(", ");

const dollars = (amounts: Record<string, number>): number => amounts.usd ?? 0;
const shown = (amounts: Record<string, number>): string => dollars(amounts).toLocaleString("en", { style: "currency", currency: "USD" });

export function Money({ of }: { of: MoneySeen }) {
  const whole = Math.max(1e-9, dollars(of.spent) + dollars(of.saved));
  const parts = [
    ["Spent", of.spent, ""],
    ["Wasted", of.wasted, "review"],
    ["Saved by records", of.saved, "completed"],
  ] as const;
  return (
    <div class="money">
      <dl>
        {parts.map(([name, amounts, tone]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class={tone && dollars(amounts) ? `tone is-${tone}` : undefined}>{shown(amounts)}</dd>
          </div>
        ))}
      </dl>
      <div class="meter tall" aria-hidden="true">
        <i class="is-active" style={{ width: `${(100 * (dollars(of.spent) - dollars(of.wasted))) / whole}%` }} />
        <i class="is-review" style={{ width: `${(100 * dollars(of.wasted)) / whole}%` }} />
        <i class="is-completed pale" style={{ width: `${(100 * dollars(of.saved)) / whole}%` }} />
      </div>
      <p class="muted">{local(of.words)}</p>
    </div>
  );
}

export function Cost({ of }: { of: CostLine }) {
  return (
    <li>
      <span class="cut">{readable(of.stage)}</span>
      <span class="meter" aria-hidden="true">
        <i class="is-completed" style={{ width: `${100 * (of.share - of.wasted_share)}%` }} />
        <i class="is-review" style={{ width: `${100 * of.wasted_share}%` }} />
      </span>
      <span class="num">{of.words}</span>
    </li>
  );
}

const BY_STATE: State[] = ["available", "active", "pending", "retryable", "scheduled", "review"];

export function QueueBar({ of, bare }: { of: Queue; bare?: boolean }) {
  const counts = countsOf(of.states);
  const live = BY_STATE.map((state) => [state, counts[state] ?? 0] as const).filter(([, n]) => n > 0);
  const words = of.is_paused ? of.pause_words : [`${number(of.waiting)} waiting`, of.oldest_words].filter(Boolean).join(", ");
  return (
    <a class={`queue-row${bare ? " bare" : ""}`} href={pathOf("queues", of.name)} aria-label={bare ? `Queue ${of.name}` : undefined}>
      {!bare && <span class="cut">{of.name}</span>}
      <span class={`meter wide${of.is_paused ? " paused" : ""}`} role="img" aria-label={live.map(([state, n]) => `${number(n)} ${state}`).join(", ") || "nothing waits or runs"}>
        {live.map(([state, n]) => (
          <i key={state} class={`is-${state}`} style={{ flexGrow: n }} title={`${number(n)} ${state}`} />
        ))}
      </span>
      <span class={of.trouble ? "num tone is-review" : "num muted"}>{of.trouble || words}</span>
    </a>
  );
}

const SLOTS = 24;

export function Slots({ of }: { of: Pick<WorkerDot, "slots" | "busy"> }) {
  const slots = Math.min(SLOTS, of.slots);
  return (
    <span class="slots" role="img" aria-label={`${of.busy} of ${of.slots} slots in use`}>
      {Array.from({ length: slots }, (_, i) => (
        <i key={i} class={i < of.busy ? "is-active" : undefined} />
      ))}
      {of.slots > SLOTS && <small>{`of ${of.slots}`}</small>}
    </span>
  );
}
