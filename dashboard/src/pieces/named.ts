// A job's stored arguments, by the names of its parameters and back.

export type Named = Record<string, unknown>;

/** A stored list of arguments by the parameters' names. Those given by name are the last element, under "**". */
export function byName(args: unknown, names: string[]): Named {
  const list = Array.isArray(args) ? (args as unknown[]) : [];
  const last = list[list.length - 1] as { "**"?: Named } | null | undefined;
  const named = last && typeof last === "object" && "**" in last ? last["**"]! : undefined;
  const places = named ? list.slice(0, -1) : list;
  return { ...Object.fromEntries(places.map((value, i) => [names[i] ?? String(i), value])), ...named };
}

/** The same back: by place up to the first that is left out, and by name after it. */
export function asList(values: Named, names: string[]): unknown[] {
  const gap = names.findIndex((name) => values[name] === undefined);
  const places = gap < 0 ? names : names.slice(0, gap);
  const rest = Object.fromEntries(names.slice(places.length).filter((name) => values[name] !== undefined).map((name) => [name, values[name]]));
  return [...places.map((name) => values[name]), ...(Object.keys(rest).length ? [{ "**": rest }] : [])];
}
