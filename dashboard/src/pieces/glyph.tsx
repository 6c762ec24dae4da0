// The nine glyphs of the states, drawn from the table that Python wrote.
import { STATES, type State } from "../made/states";

interface Part {
  is: string;
  [name: string]: string | number;
}

/** A pie from the top, clockwise; at least a sliver, so that a running job is never an empty ring. */
export function pie(x: number, y: number, r: number, part: number): string {
  const share = Math.min(0.999, Math.max(0.06, part));
  const angle = share * 2 * Math.PI;
  const end = `${(x + r * Math.sin(angle)).toFixed(2)} ${(y - r * Math.cos(angle)).toFixed(2)}`;
  return `M${x} ${y}V${y - r}A${r} ${r} 0 ${share > 0.5 ? 1 : 0} 1 ${end}Z`;
}

export function Glyph({ state, part, size = 16, named = false }: { state: State; part?: number | null; size?: number; named?: boolean }) {
  const about = named ? { role: "img" as const, "aria-label": state } : { "aria-hidden": true as const };
  return (
    <svg class={`glyph is-${state}`} width={size} height={size} viewBox="0 0 16 16" {...about}>
      {(STATES[state].glyph as unknown as Part[]).map(({ is, ...more }, i) =>
        is === "pie" ? (
          <path key={i} d={pie(Number(more.cx), Number(more.cy), Number(more.r), part ?? 0.25)} fill="currentColor" />
        ) : is === "circle" ? (
          <circle key={i} {...more} />
        ) : (
          <path key={i} {...more} />
        ),
      )}
    </svg>
  );
}

const ICONS: Record<string, string> = {
  overview: "M2.5 13.5h11M4.5 11V7.5M8 11V4M11.5 11V6",
  jobs: "M2.5 4.5h11M2.5 8h11M2.5 11.5h7",
  review: "M2.5 9.5l2-6h7l2 6v3h-11zM2.5 9.5h3.2c.3 1.2 1.2 1.8 2.3 1.8s2-.6 2.3-1.8h3.2",
  queues: "M2.5 4.5h8M2.5 8h11M2.5 11.5h5",
  workers: "M3 3h10v4H3zM3 9h10v4H3zM5.3 5h.1M5.3 11h.1",
  schedules: "M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 1 0 0-11.6M8 5v3.2l2 1.2",
  lifecycle: "M5.5 8l5-3.2M5.5 8l5 3.2M3.7 6.4a1.6 1.6 0 1 0 0 3.2a1.6 1.6 0 1 0 0-3.2M12.2 2.5a1.6 1.6 0 1 0 0 3.2a1.6 1.6 0 1 0 0-3.2M12.2 10.3a1.6 1.6 0 1 0 0 3.2a1.6 1.6 0 1 0 0-3.2",
  find: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9M10.4 10.4l3.1 3.1",
  theme: "M8 2.2a5.8 5.8 0 1 0 0 11.6zM8 2.2a5.8 5.8 0 0 1 0 11.6",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  close: "M4 4l8 8M12 4l-8 8",
  key: "M2.5 4h11v8h-11zM5 6.5h.1M8 6.5h.1M11 6.5h.1M5.5 9.7h5",
};

export function Icon({ name, size = 16 }: { name: string; size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.35" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={ICONS[name] ?? ""} fill={name === "theme" ? "none" : undefined} />
      {name === "theme" && <path d="M8 2.2a5.8 5.8 0 0 0 0 11.6z" fill="currentColor" stroke="none" />}
    </svg>
  );
}

export function Mark() {
  return (
    <svg width="20" height="20" viewBox="0 0 20 20" fill="none" stroke="currentColor" stroke-width="1.9" stroke-linecap="round" aria-hidden="true">
      <path d="M10 2.5V12M10 11.5c0 3-2.4 5-6 5.5M10 11.5c0 3 2.4 5 6 5.5" />
    </svg>
  );
}
