"""The page that shows an OpenAPI document: plain HTML, its own script, nothing from elsewhere."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.5rem } code { font-family: ui-monospace, monospace }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0 }
tr { border-bottom: 1px solid #8884 } .verb { text-transform: uppercase; opacity: .6 }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } }
</style>
<main>loading</main>
<script>
const el = (name, text, kids = []) => {
  const node = document.createElement(name)
  if (text) node.textContent = text
  node.append(...kids)
  return node
}
const follow = (doc, schema) => schema.$ref
  ? doc.components.schemas[schema.$ref.split("/").pop()] : schema
const kind = schema => {
  if (!schema) return "any"
  if (schema.$ref) return schema.$ref.split("/").pop()
  if (schema.anyOf) return schema.anyOf.map(kind).filter(one => one !== "null").join(" | ")
  if (schema.enum) return schema.enum.map(one => JSON.stringify(one)).join(" | ")
  if (schema.type === "array") return "list of " + kind(schema.items)
  return [].concat(schema.type ?? "any").join(" | ")
}
const fields = (doc, schema) => {
  const parts = (schema.allOf ?? [schema]).map(part => follow(doc, part))
  const rows = parts.flatMap(part => Object.entries(part.properties ?? {}).map(([name, said]) =>
    el("tr", "", [
      el("td", "", [el("code", name)]),
      el("td", kind(said)),
      el("td", (part.required ?? []).includes(name) ? "required" : ""),
    ])))
  return el("table", "", rows)
}
const show = doc => {
  const main = document.querySelector("main")
  main.replaceChildren(el("h1", doc.info.title + " " + doc.info.version))
  for (const [path, verbs] of Object.entries(doc.paths))
    for (const [verb, said] of Object.entries(verbs)) {
      const head = el("h2", "", [el("code", path + " ")])
      const shown = el("small", verb)
      shown.className = "verb"
      head.append(shown)
      main.append(head, el("p", said.summary))
      const body = said.requestBody?.content["application/json"].schema
      if (body) main.append(fields(doc, body))
    }
  main.append(el("h2", "Types"))
  for (const [name, schema] of Object.entries(doc.components.schemas))
    main.append(el("h3", name), fields(doc, schema))
}
fetch("openapi.json").then(answer => answer.json()).then(show, error => {
  document.querySelector("main").textContent = String(error)
})
</script>
</html>
"""
