// Made by tools/dashboard.py from core/lifecycle.py and jobs/views/state_looks.py.
export const STATES = {
 "scheduled": {
  "meaning": "waiting for a time: a delay or a durable sleep",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 6.25,
    "fill": "none",
    "stroke": "currentColor",
    "stroke-dasharray": "2.2 2.2"
   },
   {
    "is": "path",
    "d": "M8 4.8V8l2.2 1.4",
    "fill": "none",
    "stroke": "currentColor",
    "stroke-linecap": "round"
   }
  ]
 },
 "available": {
  "meaning": "in its queue; any worker can claim it",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 6.25,
    "fill": "none",
    "stroke": "currentColor",
    "stroke-width": 1.5
   }
  ]
 },
 "pending": {
  "meaning": "waiting for a person, a signal or child jobs",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 6.25,
    "fill": "none",
    "stroke": "currentColor",
    "stroke-width": 1.4
   },
   {
    "is": "path",
    "d": "M6.4 5.8v4.4M9.6 5.8v4.4",
    "fill": "none",
    "stroke": "currentColor",
    "stroke-linecap": "round",
    "stroke-width": 1.5
   }
  ]
 },
 "active": {
  "meaning": "a worker holds its lease and runs it",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 6.25,
    "fill": "none",
    "stroke": "currentColor",
    "stroke-width": 1.5
   },
   {
    "is": "pie",
    "cx": 8,
    "cy": 8,
    "r": 4
   }
  ]
 },
 "retryable": {
  "meaning": "failed; runs again after its backoff",
  "glyph": [
   {
    "is": "path",
    "d": "M13.4 8.6A5.5 5.5 0 1 1 11.6 4",
    "fill": "none",
    "stroke": "currentColor",
    "stroke-linecap": "round",
    "stroke-width": 1.5
   },
   {
    "is": "path",
    "d": "M12.2 1.4v3h-3",
    "fill": "none",
    "stroke": "currentColor",
    "stroke-linecap": "round",
    "stroke-width": 1.5,
    "stroke-linejoin": "round"
   }
  ]
 },
 "review": {
  "meaning": "needs a person: no retries left, an effect in doubt, or too many lost workers",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 7,
    "fill": "currentColor"
   },
   {
    "is": "path",
    "d": "M8 4.4v4.2M8 11.4v.1",
    "fill": "none",
    "stroke": "var(--ground)",
    "stroke-linecap": "round",
    "stroke-width": 1.7,
    "stroke-linejoin": "round"
   }
  ]
 },
 "completed": {
  "meaning": "done",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 7,
    "fill": "currentColor"
   },
   {
    "is": "path",
    "d": "M4.9 8.3l2.1 2.1 4.1-4.5",
    "fill": "none",
    "stroke": "var(--ground)",
    "stroke-linecap": "round",
    "stroke-width": 1.7,
    "stroke-linejoin": "round"
   }
  ]
 },
 "discarded": {
  "meaning": "given up by a person, or expired",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 7,
    "fill": "currentColor"
   },
   {
    "is": "path",
    "d": "M5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8",
    "fill": "none",
    "stroke": "var(--ground)",
    "stroke-linecap": "round",
    "stroke-width": 1.7,
    "stroke-linejoin": "round"
   }
  ]
 },
 "cancelled": {
  "meaning": "stopped on request",
  "glyph": [
   {
    "is": "circle",
    "cx": 8,
    "cy": 8,
    "r": 6.25,
    "fill": "none",
    "stroke": "currentColor",
    "stroke-width": 1.5
   },
   {
    "is": "path",
    "d": "M4 12l8-8",
    "fill": "none",
    "stroke": "currentColor",
    "stroke-linecap": "round",
    "stroke-width": 1.5
   }
  ]
 }
} as const;
export type State = keyof typeof STATES;
export const EVENTS = [
 {
  "event": "submit",
  "from": [],
  "to": [
   "available",
   "scheduled",
   "pending"
  ],
  "who": "caller",
  "lease": "–",
  "meaning": "a new job"
 },
 {
  "event": "promote",
  "from": [
   "scheduled",
   "retryable"
  ],
  "to": [
   "available"
  ],
  "who": "time",
  "lease": "–",
  "meaning": "its delay or backoff is over"
 },
 {
  "event": "activate",
  "from": [
   "pending"
  ],
  "to": [
   "available"
  ],
  "who": "caller, children, signal, time",
  "lease": "–",
  "meaning": "what it waited for has arrived, or its `within` has passed"
 },
 {
  "event": "claim",
  "from": [
   "available"
  ],
  "to": [
   "active"
  ],
  "who": "worker",
  "lease": "takes",
  "meaning": "a worker takes the lease; epoch + 1"
 },
 {
  "event": "complete",
  "from": [
   "active"
  ],
  "to": [
   "completed"
  ],
  "who": "owner",
  "lease": "needs",
  "meaning": "done, with its result"
 },
 {
  "event": "fail",
  "from": [
   "active"
  ],
  "to": [
   "retryable"
  ],
  "who": "owner",
  "lease": "needs",
  "meaning": "failed, with retries left; the error is recorded"
 },
 {
  "event": "exhaust",
  "from": [
   "active"
  ],
  "to": [
   "review"
  ],
  "who": "owner",
  "lease": "needs",
  "meaning": "no retries left, an error that is never retried, or ten releases in a row without progress"
 },
 {
  "event": "release",
  "from": [
   "active"
  ],
  "to": [
   "available"
  ],
  "who": "owner",
  "lease": "needs",
  "meaning": "shutdown or deploy: back to the queue; uses no attempt"
 },
 {
  "event": "suspend",
  "from": [
   "active"
  ],
  "to": [
   "pending"
  ],
  "who": "owner",
  "lease": "needs",
  "meaning": "waits for a person, a signal or child jobs"
 },
 {
  "event": "rest",
  "from": [
   "active"
  ],
  "to": [
   "scheduled"
  ],
  "who": "owner",
  "lease": "needs",
  "meaning": "a durable sleep, or put back to run later; uses no attempt"
 },
 {
  "event": "lapse",
  "from": [
   "active"
  ],
  "to": [
   "available"
  ],
  "who": "upkeep, owner",
  "lease": "breaks",
  "meaning": "its worker was lost, its worker's event loop ended, or its stage went stale; recoveries + 1"
 },
 {
  "event": "overrun",
  "from": [
   "active"
  ],
  "to": [
   "retryable"
  ],
  "who": "upkeep",
  "lease": "breaks",
  "meaning": "its timeout has passed and its worker didn't stop it; counts as a failure"
 },
 {
  "event": "abandon",
  "from": [
   "active"
  ],
  "to": [
   "review"
  ],
  "who": "upkeep, owner",
  "lease": "breaks",
  "meaning": "too many lost workers, no retries left, or an effect in doubt"
 },
 {
  "event": "cancel",
  "from": [
   "scheduled",
   "available",
   "pending",
   "active",
   "retryable",
   "review"
  ],
  "to": [
   "cancelled"
  ],
  "who": "caller",
  "lease": "breaks",
  "meaning": "stopped on request"
 },
 {
  "event": "expire",
  "from": [
   "scheduled",
   "available",
   "pending",
   "retryable"
  ],
  "to": [
   "discarded"
  ],
  "who": "time",
  "lease": "–",
  "meaning": "`expires` has passed"
 },
 {
  "event": "replay",
  "from": [
   "review"
  ],
  "to": [
   "available"
  ],
  "who": "person",
  "lease": "–",
  "meaning": "runs again with its recorded steps, its arguments perhaps edited; attempt and recoveries are reset"
 },
 {
  "event": "resolve",
  "from": [
   "review"
  ],
  "to": [
   "completed"
  ],
  "who": "person",
  "lease": "–",
  "meaning": "a person supplies the result"
 },
 {
  "event": "discard",
  "from": [
   "review"
  ],
  "to": [
   "discarded"
  ],
  "who": "person",
  "lease": "–",
  "meaning": "a person gives it up"
 }
];
