package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

// openAPIDocument is the description of the endpoints.
var openAPIDocument = sync.OnceValue(func() (d object) {
	if err := json.Unmarshal(openAPISpec, &d); err != nil {
		panic(err)
	}
	return d
})

// in returns the value at a path of keys; nil if there is none.
func in(v any, keys ...string) any {
	for _, k := range keys {
		o, _ := v.(object)
		v = o[k]
	}
	return v
}

// resolved follows references.
func resolved(schema any) object {
	for {
		o, _ := schema.(object)
		ref, ok := o["$ref"].(string)
		if !ok {
			return o
		}
		schema = in(openAPIDocument(), strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
}

// violation says how a value violates a schema, with the keywords that the description uses.
func violation(v, schema any) error {
	s := resolved(schema)
	for _, k := range []string{"oneOf", "anyOf"} {
		if list, ok := s[k].([]any); ok && !slices.ContainsFunc(list, func(x any) bool { return violation(v, x) == nil }) {
			return fmt.Errorf("found %v, which is none of %s", v, k)
		}
	}
	if list, ok := s["enum"].([]any); ok && !slices.Contains(list, v) {
		return fmt.Errorf("found %v, expected one of %v", v, list)
	}
	if !hasType(v, s["type"]) {
		return fmt.Errorf("found %v, expected %v", v, s["type"])
	}
	switch v := v.(type) {
	case float64:
		return outOfBounds(v, s)
	case []any:
		for i, x := range v {
			if err := violation(x, s["items"]); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
		if n, ok := s["minItems"].(float64); ok && float64(len(v)) < n {
			return errors.New("too few elements")
		}
	case object:
		return wrongMember(v, s)
	}
	return nil
}

func hasType(v, want any) bool {
	if list, ok := want.([]any); ok {
		return slices.ContainsFunc(list, func(t any) bool { return hasType(v, t) })
	}
	switch v := v.(type) {
	case nil:
		return want == nil || want == "null"
	case bool:
		return want == nil || want == "boolean"
	case string:
		return want == nil || want == "string"
	case float64:
		return want == nil || want == "number" || want == "integer" && v == math.Trunc(v)
	case []any:
		return want == nil || want == "array"
	}
	return want == nil || want == "object"
}

func outOfBounds(v float64, s object) error {
	low, isLow := s["minimum"].(float64)
	above, isAbove := s["exclusiveMinimum"].(float64)
	high, isHigh := s["maximum"].(float64)
	if isLow && v < low || isAbove && v <= above || isHigh && v > high {
		return fmt.Errorf("found %v, which is out of bounds", v)
	}
	return nil
}

func wrongMember(v, s object) error {
	required, _ := s["required"].([]any)
	for _, k := range required {
		if _, ok := v[k.(string)]; !ok {
			return fmt.Errorf("%v is missing", k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(v)) {
		of, known := in(s, "properties", k).(object)
		if !known {
			if s["additionalProperties"] == false {
				return fmt.Errorf("%s is not described", k)
			}
			of, _ = s["additionalProperties"].(object)
		}
		if err := violation(v[k], of); err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	return nil
}

// describedPath returns the path by which a pattern is described.
func describedPath(pattern string) (method, path string) {
	method, path, _ = strings.Cut(pattern, " ")
	return strings.ToLower(method), strings.NewReplacer("{$}", "", "...}", "}").Replace(path)
}

// checkAnswer requires an answer to be as described. Tests of all endpoints call it.
func (ts *testServer) checkAnswer(t testing.TB, r *http.Request, status int, header http.Header, body string) {
	_, pattern := ts.s.mux.Handler(r)
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	if pattern == "" {
		return
	}
	switch kind {
	case "application/json":
		var v any
		if json.Unmarshal([]byte(body), &v) == nil { // what a test has cut is none
			require.NoError(t, violation(v, described(t, pattern, status, kind)), "%s %d", pattern, status)
		}
	case "application/x-ndjson":
		for line := range strings.Lines(body) {
			checkEvent(t, pattern, kind, line)
		}
	case "text/event-stream":
		for line := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]\n" {
				checkEvent(t, pattern, kind, data)
			}
		}
	}
}

// checkEvent requires the data of an event, or a line, of a stream to be as described.
func checkEvent(t testing.TB, pattern, kind, data string) {
	var v any
	require.NoError(t, json.Unmarshal([]byte(data), &v), data)
	require.NoError(t, violation(v, described(t, pattern, 200, kind)), pattern)
}

// described returns the schema of an endpoint's answers.
func described(t testing.TB, pattern string, status int, kind string) any {
	method, path := describedPath(pattern)
	responses, _ := in(openAPIDocument(), "paths", path, method, "responses").(object)
	of, ok := responses[fmt.Sprint(status)]
	if !ok {
		of = responses["default"]
	}
	schema := in(resolved(of), "content", kind, "schema")
	require.NotNil(t, schema, "%s: an answer with the status %d and the type %s is not described", pattern, status, kind)
	return schema
}

// TestOpenAPI: the description is served, its references lead somewhere, and it has the
// server's endpoints and no others.
func TestOpenAPI(t *testing.T) {
	ts := start(t, Options{Version: `1.2"3`, Keys: []string{"secret"}}, engine.Options{})
	status, text, _ := ts.do(t, "GET", "/openapi.json", "")
	require.Equal(t, 200, status)
	var d object
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.Equal(t, `1.2"3`, in(d, "info", "version"))
	require.Equal(t, "3.1.0", d["openapi"])
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`"\$ref": "#/([^"]*)"`).FindAllStringSubmatch(text, -1) {
		require.NotNil(t, in(d, strings.Split(m[1], "/")...), m[1])
		used[m[1]] = true
	}
	for name := range in(d, "components", "schemas").(object) {
		require.True(t, used["components/schemas/"+name], "nothing refers to %s", name)
	}
	var served, described []string
	for _, pattern := range ts.s.patterns {
		method, path := describedPath(pattern)
		served = append(served, method+" "+path)
	}
	for path, methods := range in(d, "paths").(object) {
		for method := range methods.(object) {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	require.Equal(t, served, described)
	// Endpoints without a key are those that say so.
	for _, pattern := range ts.s.patterns {
		method, path := describedPath(pattern)
		_, open := in(d, "paths", path, method, "security").([]any)
		status, _, _ := ts.do(t, strings.ToUpper(method), strings.ReplaceAll(path, "{id}", "x"), "{}")
		require.Equal(t, open, status != 401, pattern)
	}
}

// TestOpenAPIErrorEvents: an error that ends a stream is described for each of them.
func TestOpenAPIErrorEvents(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	for pattern, fail := range map[string]func(out *eventStream, e *apiError){
		"POST /v1/chat/completions": (&chatFormat{}).fail,
		"POST /v1/completions":      (&textFormat{}).fail,
		"POST /v1/responses":        (&responseFormat{}).fail,
		"POST /v1/messages":         (&messageFormat{}).fail,
		"POST /api/chat":            (&ollamaFormat{}).fail,
		"POST /api/generate":        (&ollamaFormat{}).fail,
	} {
		for _, e := range []*apiError{{status: 503, Message: "busy", Type: "overloaded"}, {status: 400, Message: "wrong", Type: "invalid_request_error", Param: "n", Code: "x"}} {
			w, ctx := httptest.NewRecorder(), context.WithValue(t.Context(), holdsKey{}, ts.s.newHolds(""))
			r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
			kind, open := "text/event-stream", newEventStream
			if strings.Contains(pattern, "/api/") {
				kind, open = "application/x-ndjson", newLineStream
			}
			out := open(w, r)
			fail(out, e)
			out.close()
			require.Contains(t, w.Body.String(), e.Message, pattern)
			data := regexp.MustCompile("{.*}").FindString(w.Body.String())
			checkEvent(t, pattern, kind, data)
		}
	}
}

// requestsOf are requests that together make handlers look for all fields they know.
var requestsOf = func() map[string][]string {
	const messages = `{"model":"needle/llama","messages":[{"role":"user","content":"Hello"}],"max_tokens":2}`
	const prompt = `{"model":"needle/llama","prompt":"Hello","max_tokens":2}`
	return map[string][]string{
		"/v1/chat/completions": {messages}, "/v1/chat/completions/render": {messages},
		"/v1/completions": {prompt}, "/v1/completions/render": {prompt},
		"/v1/responses": {`{"model":"needle/llama","input":"Hello","max_output_tokens":2,"include":["message.output_text.logprobs"]}`},
		"/v1/messages":  {messages}, "/v1/messages/count_tokens": {messages},
		"/v1/embeddings": {`{"model":"needle/llama","input":"Hello"}`},
		"/v1/documents":  {`{"model":"needle/llama","text":"Peter lives in Rome.","kv_compression":{"metric":"keydiff","ratio":0.5}}`},
		"/tokenize":      {messages, prompt}, "/detokenize": {`{"model":"needle/llama","tokens":[1]}`},
		"/api/chat": {messages}, "/api/generate": {prompt, `{"model":"needle/llama","prompt":"Hello","raw":true,"options":{"num_predict":2}}`},
		"/api/embed": {`{"model":"needle/llama","input":"Hello"}`}, "/api/embeddings": {prompt}, "/api/show": {`{"model":"needle/llama"}`},
	}
}()

// TestOpenAPIFields: the fields that are described are those that handlers look for, other
// than to refuse them, and values that the description excludes are refused.
func TestOpenAPIFields(t *testing.T) {
	ts := embedder(t)
	var mu sync.Mutex
	read := map[string]bool{}
	noteRead = func(_ context.Context, key string) {
		mu.Lock()
		defer mu.Unlock()
		read[key] = true
	}
	defer func() { noteRead = nil }()
	refused := func(path, base, key string, value any) bool {
		var q object
		decode(t, base, &q)
		q[key] = value
		status, text, _ := ts.do(t, "POST", path, mustJSON(t, q))
		return status >= 400 && status < 500 && (strings.Contains(text, key) || key == "name")
	}
	for path, methods := range in(openAPIDocument(), "paths").(object) {
		schema := resolved(in(methods, "post", "requestBody", "content", "application/json", "schema"))
		if schema == nil {
			continue
		}
		bodies := requestsOf[path]
		clear(read)
		for _, body := range bodies {
			status, text, _ := ts.do(t, "POST", path, body)
			assert.Less(t, status, 300, "%s: %s", path, text)
		}
		described := schema["properties"].(object)
		looked := slices.Sorted(maps.Keys(read))
		for key := range described {
			assert.Contains(t, looked, key, "%s: nothing looks for it", path)
		}
		for _, key := range looked {
			if described[key] == nil {
				assert.True(t, refused(path, bodies[0], key, object{"x": 1.0}), "%s: %s is neither described nor refused", path, key)
			}
		}
		for key, of := range described {
			for _, value := range []any{"x", -99999.5, true, []any{[]any{[]any{}}}, object{"type": 7.0}} {
				if violation(value, of) != nil {
					ok := slices.ContainsFunc(bodies, func(body string) bool { return refused(path, body, key, value) })
					assert.True(t, ok, "%s: %s is %v, which is not as described, and is not refused", path, key, value)
				}
			}
		}
	}
}
