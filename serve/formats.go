package serve

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/lukv/lukv/dialog/structured"
	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/strictjson"
)

const (
	maxSchema = 256 << 10 // bytes of the format of an answer
	maxWords  = 4096      // to choose from
)

// unsupported are fields by which other servers take the format of an answer. Left out
// without a word, they would give answers of another format than was asked for.
var unsupported = []string{"grammar", "json_schema", "regex", "ebnf", "format", "bad_words", "allowed_token_ids", "structural_tag", "guided_grammar",
	"guided_decoding", "guided_whitespace_pattern", "json_mode", "json_object", "banned_tokens", "banned_strings", "bad_words_ids", "logits_processors", "logits_processor", "logit_processors",
	"sampling_params", "extra_body", "lark", "gbnf", "bnf", "constraint", "output_schema", "json_schema_str"}

// Names by which servers and endpoints take a limit of answers, a limit of reasoning, and stop
// texts. Left out without a word, answers would be longer than was asked for.
var (
	limitNames   = []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict", "num_predict"}
	thoughtNames = []string{"thinking_budget", "reasoning_budget", "max_thinking_tokens", "max_reasoning_tokens"}
	stopNames    = []string{"stop", "stop_sequences", "stop_strings"}
)

// altering are fields by which other servers change how tokens are drawn or what of a prompt or
// an answer is used, and the values with which they change nothing.
var altering = map[string][]string{
	"typical_p": {"1"}, "typical": {"1"}, "typ_p": {"1"}, "tfs_z": {"1"}, "tfs": {"1"}, "top_a": {"0"}, "top_n_sigma": {"0", "-1"},
	"mirostat": {"0"}, "mirostat_mode": {"0"}, "dynatemp_range": {"0"}, "smoothing_factor": {"0"}, "epsilon_cutoff": {"0"}, "eta_cutoff": {"0"},
	"dry_multiplier": {"0"}, "xtc_probability": {"0"}, "no_repeat_ngram_size": {"0"}, "repeat_penalty": {"1"}, "use_beam_search": {"false"},
	"truncate_prompt_tokens": {"-1"}, "skip_special_tokens": {"true"},
}

// refuseForeign refuses fields whose names the endpoint does not have, unless one of its own
// for the same is there. −1 is no limit.
func refuseForeign(f *fields, names []string, own ...string) {
	if slices.ContainsFunc(own, f.has) {
		return
	}
	for _, key := range names {
		if v := f.raw(key); v != nil && string(v) != "-1" && string(v) != "[]" && !slices.Contains(own, key) {
			f.fail(key, "not a field of this endpoint, expected %s", own[0])
		}
	}
}

// formats reads the formats that a request asks for.
type formats struct {
	f     *fields
	found []wanted
}

// wanted is a format and the field that asks for it.
type wanted struct {
	structured.Format
	field string
}

func (x *formats) add(field string, format structured.Format) {
	if x.found = append(x.found, wanted{format, field}); len(x.found) > 1 {
		x.f.fail(field, "found a second format of the answer, expected one of %s and %s", x.found[0].field, field)
	}
}

// format reads the format that an answer must have: response_format, or vLLM's
// structured_outputs or its older names.
func format(f *fields) wanted {
	x := &formats{f: f}
	x.response()
	x.outputs()
	x.guided(f, "guided_", "guided_")
	for _, key := range unsupported {
		refuse(f, key)
	}
	for _, key := range slices.Sorted(maps.Keys(altering)) {
		refuse(f, key, altering[key]...)
	}
	if len(x.found) == 0 || f.err != nil {
		return wanted{}
	}
	if n := x.found[0].Size(); n > maxSchema {
		f.fail(x.found[0].field, "found %d bytes, expected at most %d", n, maxSchema)
		return wanted{}
	}
	return x.found[0]
}

// response reads response_format.
func (x *formats) response() {
	o := x.f.object("response_format")
	if o == nil {
		return
	}
	switch t := o.str("type"); t {
	case "text":
	case "json_object":
		if schema := o.raw("schema"); schema != nil { // as llama.cpp has it
			if schema[0] == '{' {
				o.values["schema"] = structured.OfObjects(schema)
			}
			x.add("response_format", schemaFormat(o, "schema", false))
		} else {
			x.add("response_format", structured.Object())
		}
	case "json_schema":
		if of := o.object("json_schema"); of == nil {
			o.fail("json_schema", "missing")
		} else {
			x.add("response_format", schemaFormat(of, "schema", of.boolean("strict")))
			x.f.adopt(of)
		}
	default:
		o.fail("type", "%q is not supported, expected text, json_object or json_schema", t)
	}
	x.f.adopt(o)
}

// outputs reads structured_outputs.
func (x *formats) outputs() {
	o := x.f.object("structured_outputs")
	if o == nil {
		return
	}
	before := len(x.found)
	for key := range o.values {
		switch key {
		case "json", "regex", "choice", "json_object", "disable_fallback":
		case "grammar", "structural_tag", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern":
			refuse(o, key, "false")
		default:
			o.fail(key, "unknown, expected json, regex, choice or json_object")
		}
	}
	if o.boolean("json_object") {
		x.add("structured_outputs.json_object", structured.Object())
	}
	x.guided(o, "", "structured_outputs.")
	if len(x.found) == before && o.err == nil {
		x.f.fail("structured_outputs", "found no format, expected json, regex, choice or json_object")
	}
}

// guided reads the formats of o whose names begin with prefix; path is their name in the
// request without the rest.
func (x *formats) guided(o *fields, prefix, path string) {
	if o.has(prefix + "json") {
		x.add(path+"json", schemaFormat(o, prefix+"json", false))
	}
	if o.has(prefix + "regex") {
		expr := o.str(prefix + "regex")
		x.add(path+"regex", structured.Regexp(expr))
	}
	if o.has(prefix + "choice") {
		x.add(path+"choice", structured.Choice(o.texts(prefix+"choice", maxWords)...))
	}
	x.f.adopt(o)
}

// adopt takes over the error of a nested object unless f has one.
func (f *fields) adopt(o *fields) {
	if f.err == nil {
		f.err = o.err
	}
}

// schemaFormat reads a schema: an object, or a string that holds one.
func schemaFormat(f *fields, key string, strict bool) structured.Format {
	v := f.raw(key)
	switch {
	case v == nil:
		f.fail(key, "missing")
	case v[0] == '"':
		v = json.RawMessage(f.str(key))
		if err := strictjson.Check(v, maxDepth); err != nil && len(v) <= maxSchema {
			f.fail(key, "the text in it: %v", err)
		}
	case v[0] != '{':
		f.fail(key, "found %s, expected an object", kind(v))
	}
	return structured.Schema(v, strict)
}

// atLeast keeps answers from ending before they have n tokens. A format that can only end
// still ends.
func (v *served) atLeast(q *engine.Request, n int) {
	if n == 0 {
		return
	}
	others := make([]uint64, (v.m.Config().Vocab+63)/64)
	for id := range int32(v.m.Config().Vocab) {
		if !v.m.Ends(id, &q.Sampling) {
			others[id>>6] |= 1 << (id & 63)
		}
	}
	q.Mask = func(_ context.Context, _ int, answer []int32) ([]uint64, error) {
		if len(answer) >= n {
			return nil, nil
		}
		return others, nil
	}
}
