// Made by tools/dashboard.py from the OpenAPI document of /api/v1.
export interface Act {
  name: string;
  words: string;
  method: string;
  path: string;
  command: string;
  twice?: string;
}
export interface Acted {
  words: string;
  job: JobLine;
}
export interface AddBudgetRequest {
  add: Record<string, number>;
  reason?: string;
}
export interface Amount {
  currency: string;
  granted: number;
  spent: number;
  left: number;
}
export interface AnswerRequest {
  value: unknown;
  name?: string | null;
}
export interface BlobStored {
  sha256: string;
  bytes: number;
}
export interface BudgetLine {
  job: string;
  short: string;
  name: string;
  type: string;
  state: string;
  words: string;
  amounts: Amount[];
  added: ChangeLine[];
  acts: Act[];
}
export interface BudgetsPage {
  now: string;
  sentence: string;
  budgets: BudgetLine[];
}
export interface BulkPreview {
  now: string;
  act: string;
  sentence: string;
  plan: string;
  total: number;
  is_least: boolean;
  sample: JobLine[];
  command: string;
}
export interface BulkProgress {
  now: string;
  id: string;
  act: string;
  by: string;
  reason: string;
  state: string;
  sentence: string;
  total: number | null;
  done: number;
  refused: number;
  refusals: BulkRefusal[];
  started_at: string;
  ended_at: string | null;
  acts: Act[];
}
export interface BulkRefusal {
  job: string;
  why: string;
}
export interface BulkRequest {
  act: "cancel" | "discard" | "replay" | "resolve";
  where: Filter;
  result?: unknown;
  reason?: string;
}
export interface ChangeLine {
  at: string;
  by: string;
  what: string;
}
export interface ChildrenTab {
  words: string;
  total: number;
  is_least: boolean;
  jobs: JobLine[];
}
export interface CloseLimitRequest {
  duration: string;
  key?: string | null;
  reason?: string;
}
export interface CostLine {
  stage: string;
  spent: Record<string, number>;
  wasted: Record<string, number>;
  words: string;
  share: number;
  wasted_share: number;
}
export interface Done {
  words: string;
  job?: string | null;
}
export interface DoubtCard {
  path: string;
  name: string;
  sentence: string;
  error: string;
  started_at: string | null;
  worker: string;
  key: string;
  happened: Act;
  again: Act;
}
export interface ErrorShown {
  line: string;
  type: string;
  message: string;
  traceback?: string;
}
export interface EventShown {
  event: string;
  sources: string[];
  targets: string[];
  who: string;
  meaning: string;
}
export interface Fact {
  name: string;
  words: string;
  more?: string;
}
export interface Filter {
  state?: State[];
  queue?: string | null;
  type?: string | null;
  error?: string | null;
  step?: string | null;
  tag?: string | null;
  ids?: string[];
}
export interface ForkRequest {
  until?: string | null;
  args?: unknown[];
  allow?: string[];
  reason?: string;
}
export interface FormField {
  name: string;
  kind: string;
  takes: string;
  choices: unknown[];
  is_required: boolean;
  description: string;
  default: unknown;
  schema: Record<string, unknown>;
}
export interface Gap {
  kind: string;
  at: number;
  end: number | null;
  words: string;
}
export interface ItemCell {
  state: string;
  path?: string;
  name?: string;
  tries?: number;
  started_at?: string | null;
  took_ms?: number | null;
  is_kept?: boolean;
  words?: string;
}
export interface ItemsTab {
  stage: string;
  words: string;
  done: number;
  failed: number;
  running: number;
  total: number | null;
  usual_ms: number | null;
  cells: ItemCell[];
  squares: Squares | null;
}
export interface JobEvent {
  entry: Record<string, unknown>;
  story: StoryEntry;
}
export interface JobLine {
  id: string;
  short: string;
  name: string;
  type: string;
  queue: string;
  state: string;
  where: string;
  doing: string;
  key: string | null;
  parent: string | null;
  stage: string;
  stage_number: number | null;
  stages: string[];
  done: number | null;
  total: number | null;
  remaining_ms: number | null;
  worker: string | null;
  attempt: number;
  recoveries: number;
  spent: Record<string, number>;
  spent_words: string;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  took_ms: number | null;
  run_at: string | null;
  version: number;
}
export interface JobPage {
  now: string;
  title: string;
  job: JobLine;
  sentence: string;
  why: string;
  facts: Fact[];
  stages: StageBar[];
  items: ItemsTab[];
  children: ChildrenTab | null;
  questions: QuestionCard[];
  review: ReviewCard | null;
  story: StoryEntry[];
  story_before: number;
  cost: CostLine[];
  spent: Record<string, number>;
  wasted: Record<string, number>;
  saved: Record<string, number>;
  asked: Fact[];
  parameters: string[];
  arguments: Value;
  result: Value | null;
  error: ErrorShown | null;
  log: LogLine[];
  undo: string;
  made_from: MadeFrom | null;
  acts: Act[];
}
export interface JobType {
  type: string;
  queue: string;
  stages: string[];
  description: string;
  arguments: Record<string, unknown>;
}
export interface JobTypes {
  is_typed: boolean;
  types: JobType[];
  known: string[];
}
export interface JobsPage {
  now: string;
  sentence: string;
  tokens: Token[];
  jobs: JobLine[];
  next: string | null;
  scanned: number;
  has_scanned_out: boolean;
  hint: string;
  states: StateCount[];
}
export interface LifecyclePage {
  now: string;
  states: StateShown[];
  events: EventShown[];
}
export interface LimitKey {
  key: string;
  in_use: number;
  waiting: number;
  units_left: number | null;
  closed_until: string | null;
  words: string;
}
export interface LimitLine {
  name: string;
  sentence: string;
  at_once: number | null;
  rate: string | null;
  burst: number | null;
  per: string;
  set_by: string;
  keys: LimitKey[];
  changes: ChangeLine[];
  acts: Act[];
}
export interface LimitsPage {
  now: string;
  sentence: string;
  limits: LimitLine[];
}
export interface LogLine {
  text: string;
  level?: string;
  at?: string;
  step?: string;
  name?: string;
}
export interface LogPage {
  lines: LogLine[];
}
export interface LossBox {
  why: string;
  kept: string;
  cut: string[];
}
export interface MadeFrom {
  job: string;
  short: string;
  how: string;
  words: string;
}
export interface MinuteCounts {
  since: string | null;
  since_words: string;
  first: string | null;
  ended: number[];
  cancelled: number[];
  discarded: number[];
  lost: number[];
  words: string;
}
export interface MoneySeen {
  since: string;
  spent: Record<string, number>;
  wasted: Record<string, number>;
  saved: Record<string, number>;
  words: string;
}
export interface Navigation {
  now: string;
  store: string;
  version: string;
  needs: number;
  jobs: number;
  running: number;
  workers: number;
  queues: StateCount[];
  paused: string[];
  app: boolean;
}
export interface Need {
  kind: string;
  job: string;
  short: string;
  name: string;
  type: string;
  words: string;
  since: string;
  until: string | null;
  acts: Act[];
  question?: string;
}
export interface OpenLimitRequest {
  key?: string | null;
  reason?: string;
}
export interface OverviewPage {
  now: string;
  store: string;
  sentence: string;
  needs: Need[];
  needs_total: number;
  running: JobLine[];
  running_total: number;
  states: StateCount[];
  finished: MinuteCounts;
  money: MoneySeen | null;
  workers: WorkerDot[];
  workers_more: number;
  queues: QueueBar[];
  queues_more: number;
  alerts: string[];
}
export interface OwnerBand {
  worker: string;
  epoch: number;
  at: number;
  end: number | null;
  how: string;
}
export interface ProblemDetails {
  type: string;
  title: string;
  status: number;
  code: string;
  detail: string;
  request_id: string;
}
export interface QuestionCard {
  job: string;
  short: string;
  job_name: string;
  type: string;
  name: string;
  question: unknown;
  sentence: string;
  fields: FormField[];
  schema: Record<string, unknown>;
  asked_at: string;
  until: string | null;
  refused: string;
  act: Act;
}
export interface QueueBar {
  name: string;
  states: StateCount[];
  waiting: number;
  oldest_at: string | null;
  oldest_words: string;
  is_paused: boolean;
  pause_words: string;
  workers: number;
  trouble: string;
}
export interface QueueLine {
  bar: QueueBar;
  most_waiting: number | null;
  when_full: string | null;
  depth: number;
  total: number;
  ended: number;
  acts: Act[];
}
export interface QueuesPage {
  now: string;
  sentence: string;
  queues: QueueLine[];
}
export interface ReasonRequest {
  reason?: string;
}
export interface RejectedShown {
  feedback: string;
  result: Value | null;
}
export interface ReplayPlan {
  words: string;
  will_run: string[];
  recorded: string[];
  in_doubt: string[];
  children: string[];
  effects: string[];
  expected: Record<string, number>;
  ms: number | null;
  spent: Record<string, number>;
}
export interface ReplayRequest {
  args?: unknown[];
  reason?: string;
}
export interface RerunRequest {
  steps: string[];
  args?: unknown[];
  feedback?: string;
  allow?: string[];
  reason?: string;
}
export interface ResolveRequest {
  result: unknown;
  reason?: string;
}
export interface ResolveStepRequest {
  path: string;
  result?: unknown;
  again?: boolean;
  reason?: string;
}
export interface ReviewCard {
  job: string;
  short: string;
  name: string;
  type: string;
  queue: string;
  kind: string;
  sentence: string;
  since: string;
  since_words: string;
  before: string;
  error: ErrorShown | null;
  doubts: DoubtCard[];
  may_not_fit: DoubtCard[];
  arguments: Value;
  schema: Record<string, unknown> | null;
  replay_words: string;
  acts: Act[];
}
export interface ReviewGroupLine {
  type: string;
  step: string;
  error: string;
  count: number;
  first: string;
  last: string;
  in_doubt: number;
  message: string;
  examples: string[];
  where: Record<string, string>;
}
export interface ReviewGroups {
  now: string;
  sentence: string;
  groups: ReviewGroupLine[];
  total: number;
}
export interface ReviewItem {
  now: string;
  questions: QuestionCard[];
  review: ReviewCard | null;
}
export interface ReviewLine {
  kind: string;
  job: string;
  short: string;
  name: string;
  type: string;
  words: string;
  since: string;
  until: string | null;
  question?: string;
}
export interface ReviewPage {
  now: string;
  sentence: string;
  lines: ReviewLine[];
  total: number;
}
export interface RunningLine {
  job: string;
  short: string;
  name: string;
  epoch: number;
  words: string;
  since: string | null;
}
export interface ScheduleLine {
  name: string;
  when: string;
  sentence: string;
  type: string;
  queue: string;
  args: unknown;
  tz: string;
  missed: string;
  overlap: string;
  is_code: boolean;
  next: string[];
  last_at: string | null;
  last_job: string | null;
  last_state: string | null;
  skipped: number;
  is_paused: boolean;
  pause_words: string;
  trouble: string;
  changes: ChangeLine[];
  acts: Act[];
}
export interface SchedulesPage {
  now: string;
  sentence: string;
  schedules: ScheduleLine[];
}
export interface SetLimitRequest {
  at_once?: number | null;
  rate?: string | null;
  burst?: number | null;
  reason?: string;
}
export interface SetQueueRequest {
  most_waiting: number;
  reason?: string;
}
export interface SignalRequest {
  name: string;
  value?: unknown;
}
export interface Squares {
  each: number;
  letters: string;
}
export interface StageBar {
  name: string;
  place: string;
  done: number;
  failed: number;
  running: number;
  total: number | null;
  started_at: string | null;
  took_ms: number | null;
  usual_ms: number | null;
  words: string;
  path?: string;
}
export type State = "active" | "available" | "cancelled" | "completed" | "discarded" | "pending" | "retryable" | "review" | "scheduled";
export interface StateCount {
  state: string;
  jobs: number;
}
export interface StateShown {
  state: string;
  meaning: string;
  is_terminal: boolean;
  jobs: number;
}
export interface StepLineShown {
  path: string;
  name: string;
  state: string;
  words: string;
  epoch: number;
  tries: number;
  started_at: string;
  finished_at: string | null;
  took_ms: number | null;
  error: ErrorShown | null;
}
export interface StepPage {
  step: StepLineShown;
  result: Value | null;
  spent: Record<string, number>;
  key: string;
  code: string;
  is_effect: boolean;
  rejected: RejectedShown | null;
  acts: Act[];
}
export interface StepsPage {
  steps: StepLineShown[];
  next: string | null;
}
export interface StoryEntry {
  version: number;
  at: string;
  clock: string;
  sentence: string;
  event: string;
  after: string;
  by?: string;
  notes?: string[];
  loss?: LossBox | null;
}
export interface StoryPage {
  now: string;
  entries: StoryEntry[];
  next: number | null;
}
export interface SubmitRequest {
  type: string;
  args?: unknown[] | Record<string, unknown>;
  key?: string | null;
  key_for?: string | null;
  queue?: string | null;
  priority?: number | null;
  delay?: string | null;
  at?: string | null;
  expires?: string | null;
  tags?: string[];
  meta?: Record<string, string>;
  unique?: UniqueRequest | null;
  budget?: Record<string, number> | null;
}
export interface Submitted {
  id: string;
  is_new: boolean;
  job: JobLine;
}
export interface Timeline {
  start: string;
  now: number;
  end: number;
  bands: OwnerBand[];
  gaps: Gap[];
  rows: TimelineRow[];
  bars: TimelineBar[];
  is_binned: boolean;
  is_cut: boolean;
}
export interface TimelineBar {
  row: number;
  lane: number;
  at: number;
  end: number;
  state: string;
  path?: string;
  name?: string;
  epoch?: number;
  count?: number;
}
export interface TimelineRow {
  stage: string;
  lanes: number;
}
export interface Token {
  name: string;
  value: string;
  words: string;
}
export interface UniqueRequest {
  by: string[];
  within?: string | null;
  then?: "refuse" | "replace" | "return";
}
export interface Value {
  json?: unknown;
  text?: string;
  bytes: number;
  is_whole: boolean;
}
export interface WorkerDot {
  id: string;
  state: string;
  host: string;
  slots: number;
  busy: number;
  words: string;
}
export interface WorkerLine {
  id: string;
  state: string;
  sentence: string;
  host: string;
  pid: number;
  queues: string[];
  types: string[] | null;
  has: string[];
  slots: number;
  busy: number;
  running: RunningLine[];
  started_at: string | null;
  beat_at: string | null;
  is_quiet: boolean;
  trouble: string;
  acts: Act[];
}
export interface WorkerPage {
  now: string;
  worker: WorkerLine;
  jobs: JobLine[];
  ran: JobLine[];
}
export interface WorkersPage {
  now: string;
  sentence: string;
  workers: WorkerLine[];
}
