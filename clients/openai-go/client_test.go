package openaigo

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/serve"
)

const (
	modelID = "needle/llama" // with a slash, like model ids on a hub
	apiKey  = "secret"
)

// server is lukv serve with the embedded model.
type server struct {
	*serve.Server
	url string
}

func start(t *testing.T, o engine.Options) *server {
	m, err := builtin.Open(t.Context())
	require.NoError(t, err)
	s := serve.New(serve.Options{Keys: []string{apiKey}})
	require.NoError(t, s.Add(modelID, m, o))
	web := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		s.Drain(now)
		web.Close()
		m.Close()
	})
	return &server{s, web.URL}
}

// client returns a client configured as its documentation says: with an address and a key.
func (s *server) client(more ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(s.url + "/v1"), option.WithAPIKey(apiKey)}, more...)...)
}

// complete requires that an answer has every field that the client declares as
// required, of the declared type, at every depth. null counts as present, although the
// client treats it as absent. Lists that begin with null are not checked: in the protocol
// the scores of a prompt do.
func complete(t *testing.T, answer any) {
	t.Helper()
	if v := reflect.Indirect(reflect.ValueOf(answer)); v.IsValid() {
		checkFields(t, v, v.Type().Name())
	}
}

func checkFields(t *testing.T, v reflect.Value, at string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			checkFields(t, v.Index(i), at+"[]")
		}
	case reflect.Struct:
		meta := v.FieldByName("JSON")
		if !meta.IsValid() {
			return
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			said := meta.FieldByName(field.Name)
			if !said.IsValid() {
				continue
			}
			f := said.Interface().(respjson.Field)
			name := at + "." + field.Name
			if field.Tag.Get("api") == "required" {
				require.NotEmpty(t, f.Raw(), "%s is required", name)
			}
			if f.Raw() != "" && f.Raw() != respjson.Null && !strings.HasPrefix(f.Raw(), "[null") {
				require.True(t, f.Valid(), "%s: the client does not understand %s", name, f.Raw())
				checkFields(t, v.Field(i), name)
			}
		}
	}
}

// ask returns a request of the kind the model was made for: a question about a text.
func ask(i int) openai.ChatCompletionNewParams {
	s := sample(i)
	return openai.ChatCompletionNewParams{
		Model:    modelID,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(s.Context + "\n\n" + s.Question)},
	}
}

// sample returns one of the shorter samples that come with the model.
func sample(i int) builtin.Sample {
	for _, s := range builtin.Samples() {
		if s.Length > 256 {
			continue
		}
		if i == 0 {
			return s
		}
		i--
	}
	panic("no sample")
}

// extra decodes a response field that the client does not know.
func extra[T any](t *testing.T, fields map[string]respjson.Field, name string) (value T) {
	t.Helper()
	require.Contains(t, fields, name)
	require.NoError(t, json.Unmarshal([]byte(fields[name].Raw()), &value))
	return value
}
