// What the pages show: the API's own types, made from its OpenAPI document, and the few that the browser adds.
import type { StateCount } from "./made/api";
import { STATES, type State } from "./made/states";

export type * from "./made/api";
export type { State };

/** Who looks at the dashboard, and what they may do. */
export interface Session {
  name: string;
  scopes: string[];
  csrf: string;
  has_token: boolean;
}

/** A state that the server names. One that this page doesn't know yet looks like a waiting one. */
export const stateOf = (name: string): State => (name in STATES ? (name as State) : "pending");

export type Counts = Partial<Record<State, number>>;

export const countsOf = (states: StateCount[]): Counts => Object.fromEntries(states.map((one) => [one.state, one.jobs]));

/** How much of a job or stage is done, from 0 to 1; null if its end isn't known. */
export const partOf = (one: { done: number | null; total: number | null }): number | null => (one.total ? (one.done ?? 0) / one.total : null);

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  const?: unknown;
  format?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  $ref?: string;
  $defs?: Record<string, Schema>;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  maxLength?: number;
}
