// A form from a JSON Schema: each field as the control that fits its type. The server checks; errors stand under fields.
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { BASE } from "../router";
import type { Schema } from "../views";
import { blobPath, markOf } from "./preview";

const SEGMENTS = 5;
const LONG_TEXT = 120;

type Set = (value: unknown) => void;

interface FieldProps {
  schema: Schema;
  root: Schema;
  path: string;
  label: string;
  required: boolean;
  value: unknown;
  set: Set;
  errors: Record<string, string>;
  question?: unknown;
}

/** Follow references, and an optional value to its only other kind. */
export function resolve(schema: Schema, root: Schema): { schema: Schema; optional: boolean } {
  let optional = false;
  for (let i = 0; i < 10; i++) {
    const several = schema.anyOf?.filter((one) => one.type !== "null");
    if (schema.$ref) schema = { ...(root.$defs?.[schema.$ref.split("/").pop()!] ?? {}), ...(schema.description ? { description: schema.description } : {}) };
    else if (several?.length === 1) {
      optional ||= several.length < schema.anyOf!.length;
      schema = { ...several[0]!, default: schema.default, title: schema.title ?? several[0]!.title };
    } else break;
  }
  return { schema, optional };
}

/** The errors where the form shows them: each at the innermost field of its path. What has no field is at "". */
export function placed(errors: Record<string, string>, root: Schema): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [path, words] of Object.entries(errors)) {
    const steps = path.split(".");
    let schema = root;
    let deep = 0;
    for (; deep < steps.length; deep++) {
      const { schema: here } = resolve(schema, root);
      const inner = isTextList(here, root) ? here.items : here.type === "object" ? here.properties?.[steps[deep]!] : undefined;
      if (!inner) break;
      schema = inner;
    }
    const rest = deep ? steps.slice(deep).join(".") : "";
    found[steps.slice(0, deep).join(".")] = rest && !words.startsWith(`'${rest}'`) ? `${rest}: ${words}` : words;
  }
  return found;
}

const isTextList = (schema: Schema, root: Schema): boolean => schema.type === "array" && !!schema.items && ["string", "number", "integer", "boolean"].includes(String(resolve(schema.items, root).schema.type));

const label = (name: string, schema: Schema): string => schema.title ?? name.replaceAll("_", " ").replace(/^./, (one) => one.toUpperCase());

const between = (schema: Schema): string => {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  if (low !== undefined && high !== undefined) return `from ${low} to ${high}`;
  return low !== undefined ? `at least ${low}` : high !== undefined ? `at most ${high}` : "";
};

/** The value that a form begins with. */
export function initial(schema: Schema, root: Schema): unknown {
  if (schema.default !== undefined) return schema.default;
  const { schema: one } = resolve(schema, root);
  if (one.default !== undefined) return one.default;
  if (one.type === "object" && one.properties) return Object.fromEntries(Object.entries(one.properties).map(([name, inner]) => [name, initial(inner, root)]).filter(([, value]) => value !== undefined));
  if (one.type === "array") return [];
  return undefined;
}

function Frame({ id, label, required, hint, error, children }: { id: string; label: string; required: boolean; hint?: string; error?: string; children: ComponentChildren }) {
  return (
    <div class={`field${error ? " bad" : ""}`}>
      <label for={id}>
        {label} {!required && <small>(may be left out)</small>}
      </label>
      {children}
      {hint && <small id={`${id}-hint`}>{hint}</small>}
      {error && (
        <p class="error" id={`${id}-error`} role="alert">
          {error}
        </p>
      )}
    </div>
  );
}

function imageOf(image: unknown): string {
  const mark = markOf(image);
  if (mark) return blobPath(mark, true);
  return typeof image === "string" && image.startsWith("/api/v1/blobs/") ? `${BASE}${image}` : "";
}

function images(question: unknown, name: string, choices: unknown[]): Map<unknown, { image: string; label: string }> {
  const found = new Map<unknown, { image: string; label: string }>();
  if (!question || typeof question !== "object") return found;
  const lists = [...Object.values(question as Record<string, unknown>), question].filter(Array.isArray) as unknown[][];
  for (const list of lists)
    for (const one of list as Record<string, unknown>[]) {
      // Only our own blob route: a picture from elsewhere would tell its host who looks.
      const image = imageOf(one?.image);
      if (!image) continue;
      const choice = choices.find((c) => c === one.value || c === one.id || c === one.name || c === one[name]);
      if (choice !== undefined) found.set(choice, { image, label: String(one.label ?? one.title ?? "") });
    }
  return found;
}

function Choices({ id, choices, value, set, pictures }: { id: string; choices: unknown[]; value: unknown; set: Set; pictures: Map<unknown, { image: string; label: string }> }) {
  return (
    <div class={pictures.size ? "cards-choice" : "segments"} role="radiogroup" aria-labelledby={`${id}-legend`}>
      {choices.map((one, i) => (
        <label key={String(one)}>
          <input type="radio" name={id} id={i === 0 ? id : undefined} checked={value === one} onChange={() => set(one)} />
          {pictures.get(one) && <img src={pictures.get(one)!.image} alt="" loading="lazy" />}
          <span>
            {one === true ? "Yes" : one === false ? "No" : String(one)} {pictures.get(one)?.label && <small>{pictures.get(one)!.label}</small>}
          </span>
        </label>
      ))}
    </div>
  );
}

export function Field(props: FieldProps) {
  const id = useId();
  const { schema, optional } = resolve(props.schema, props.root);
  const { path, value, set, errors } = props;
  const required = props.required && !optional;
  const error = errors[path];
  const choices = schema.const !== undefined ? [schema.const] : schema.type === "boolean" ? [true, false] : schema.enum;
  const frame = { id, label: props.label, required, hint: schema.description, error };
  const input = { id, "aria-invalid": error ? true : undefined, "aria-describedby": error ? `${id}-error` : schema.description ? `${id}-hint` : undefined, required };

  if (choices && choices.length <= SEGMENTS)
    return (
      <fieldset class={`field${error ? " bad" : ""}`}>
        <legend id={`${id}-legend`}>
          {props.label} {!required && <small>(may be left out)</small>}
        </legend>
        <Choices id={id} choices={choices} value={value} set={set} pictures={images(props.question, path, choices)} />
        {schema.description && <small>{schema.description}</small>}
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
      </fieldset>
    );
  if (choices)
    return (
      <Frame {...frame}>
        <select {...input} value={choices.indexOf(value)} onChange={(event) => set(choices[Number(event.currentTarget.value)])}>
          <option value={-1}>choose…</option>
          {choices.map((one, i) => (
            <option key={i} value={i}>
              {String(one)}
            </option>
          ))}
        </select>
      </Frame>
    );
  if (schema.type === "number" || schema.type === "integer") {
    const bounds = [schema.type === "integer" ? "whole number" : "", between(schema)].filter(Boolean).join(", ");
    return (
      <Frame {...frame} hint={[schema.description, bounds].filter(Boolean).join(". ")}>
        <input
          {...input}
          inputMode={schema.type === "integer" ? "numeric" : "decimal"}
          value={value === undefined || value === null ? "" : String(value)}
          onInput={(event) => {
            const text = event.currentTarget.value.trim();
            set(text === "" ? undefined : Number.isFinite(Number(text)) ? Number(text) : text);
          }}
        />
      </Frame>
    );
  }
  if (schema.type === "string") {
    const text = typeof value === "string" ? value : "";
    const change = (event: { currentTarget: { value: string } }) => set(event.currentTarget.value === "" && !required ? undefined : event.currentTarget.value);
    const kinds = { date: "date", "date-time": "datetime-local", time: "time" } as const;
    const kind = kinds[schema.format as keyof typeof kinds];
    const long = (schema.maxLength ?? 0) > LONG_TEXT || text.length > LONG_TEXT;
    const size = schema.maxLength && !schema.description ? `at most ${schema.maxLength} characters` : schema.description;
    return (
      <Frame {...frame} hint={size}>
        {long ? <textarea {...input} value={text} onInput={change} /> : kind ? <input {...input} type={kind} value={text} onInput={change} /> : <input {...input} value={text} onInput={change} />}
      </Frame>
    );
  }
  if (schema.type === "object" && schema.properties)
    return (
      <fieldset class={`field group${error ? " bad" : ""}`}>
        <legend>
          {props.label} {!required && <small>(may be left out)</small>}
        </legend>
        <Fields schema={schema} root={props.root} path={path} value={value} set={set} errors={errors} question={props.question} />
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
      </fieldset>
    );
  if (isTextList(schema, props.root)) {
    const list = Array.isArray(value) ? (value as unknown[]) : [];
    return (
      <fieldset class={`field group${error ? " bad" : ""}`}>
        <legend>{props.label}</legend>
        {list.map((one, i) => (
          <div class="row-field" key={i}>
            <Field {...props} schema={schema.items!} path={`${path}.${i}`} label={`${i + 1}`} required value={one} set={(next) => set(list.map((old, j) => (j === i ? next : old)))} />
            <button type="button" class="btn small" onClick={() => set(list.filter((_, j) => j !== i))}>
              Remove
            </button>
          </div>
        ))}
        <button type="button" class="btn small" onClick={() => set([...list, initial(schema.items!, props.root) ?? ""])}>
          Add one
        </button>
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
      </fieldset>
    );
  }
  return <JsonField {...props} frame={frame} input={input} />;
}

function JsonField({ value, set, frame, input }: FieldProps & { frame: Parameters<typeof Frame>[0] extends infer T ? Omit<T & object, "children"> : never; input: Record<string, unknown> }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [bad, setBad] = useState("");
  return (
    <Frame {...(frame as { id: string; label: string; required: boolean; error?: string })} hint="JSON" error={(frame as { error?: string }).error ?? bad}>
      <textarea
        {...input}
        class="mono"
        value={text}
        spellcheck={false}
        onInput={(event) => {
          setText(event.currentTarget.value);
          try {
            set(event.currentTarget.value.trim() ? JSON.parse(event.currentTarget.value) : undefined);
            setBad("");
          } catch {
            setBad("This is not JSON yet.");
          }
        }}
      />
    </Frame>
  );
}

export function Fields({ schema, root, path = "", value, set, errors, question }: { schema: Schema; root: Schema; path?: string; value: unknown; set: Set; errors: Record<string, string>; question?: unknown }) {
  const whole = resolve(schema, root).schema;
  if (whole.type !== "object" || !whole.properties || !Object.keys(whole.properties).length)
    return <Field schema={schema} root={root} path={path} label="Answer" required value={value} set={set} errors={errors} question={question} />;
  const fields = (value && typeof value === "object" ? value : {}) as Record<string, unknown>;
  const names = [...new Set([...(whole.required ?? []).filter((name) => name in whole.properties!), ...Object.keys(whole.properties)])];
  return (
    <>
      {names.map((name) => (
        <Field
          key={name}
          schema={whole.properties![name]!}
          root={root}
          path={path ? `${path}.${name}` : name}
          label={label(name, whole.properties![name]!)}
          required={whole.required?.includes(name) ?? false}
          value={fields[name]}
          set={(next) => {
            const changed = { ...fields, [name]: next };
            if (next === undefined) delete changed[name];
            set(changed);
          }}
          errors={errors}
          question={question}
        />
      ))}
    </>
  );
}
