package openaigo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

func TestModels(t *testing.T) {
	c := start(t, engine.Options{}).client()
	page, err := c.Models.List(t.Context())
	require.NoError(t, err)
	require.Len(t, page.Data, 1)
	complete(t, page.Data)
	require.Equal(t, modelID, page.Data[0].ID)
	m, err := c.Models.Get(t.Context(), modelID)
	require.NoError(t, err)
	complete(t, m)
	require.Equal(t, page.Data[0].RawJSON(), m.RawJSON())
	require.Equal(t, 2048, extra[int](t, m.JSON.ExtraFields, "max_model_len"))
}

// TestErrors: the client turns every refusal into its own error type, and does not retry
// what would be refused again.
func TestErrors(t *testing.T) {
	s := start(t, engine.Options{MaxBytes: 1 << 20})
	attempts := 0
	count := option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		attempts++
		return next(r)
	})
	c := s.client(count)
	changed := func(change func(p *openai.ChatCompletionNewParams)) func(context.Context) error {
		return func(ctx context.Context) error {
			p := openai.ChatCompletionNewParams{Model: modelID, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}, MaxTokens: openai.Int(2)}
			change(&p)
			_, err := c.Chat.Completions.New(ctx, p)
			_, inStream := firstChunk(c.Chat.Completions.NewStreaming(ctx, p))
			var one, two *openai.Error
			if errors.As(err, &one) && errors.As(inStream, &two) {
				attempts--
				require.Equal(t, one.StatusCode, two.StatusCode)
				require.Equal(t, []string{one.Type, one.Code, one.Param}, []string{two.Type, two.Code, two.Param})
			} else if err != nil {
				return inStream
			}
			return err
		}
	}
	for _, test := range []struct {
		name   string
		ask    func(ctx context.Context) error
		status int
		kind   string
		code   string
		param  string
		text   string
	}{
		{"range", changed(func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(3) }), 400, "invalid_request_error", "", "temperature", "0 to 2"},
		{"no messages", changed(func(p *openai.ChatCompletionNewParams) { p.Messages = []openai.ChatCompletionMessageParamUnion{} }), 400, "invalid_request_error", "", "messages", "an empty list"},
		{"tools", changed(func(p *openai.ChatCompletionNewParams) {
			p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "f", Parameters: openai.FunctionParameters{"not": map[string]any{}}})}
			p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
		}), 400, "invalid_request_error", "", "tools", `"not"`},
		{"model", changed(func(p *openai.ChatCompletionNewParams) { p.Model = "another" }), 404, "invalid_request_error", "model_not_found", "", "another"},
		{"context", changed(func(p *openai.ChatCompletionNewParams) { p.MaxTokens = openai.Int(5000) }), 400, "invalid_request_error", "context_length_exceeded", "max_tokens", "maximum context length is 2048 tokens"},
		{"long", changed(func(p *openai.ChatCompletionNewParams) {
			p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("word ", 3000))}
		}), 400, "invalid_request_error", "context_length_exceeded", "messages", "maximum context length is 2048 tokens"},
		{"memory", changed(func(p *openai.ChatCompletionNewParams) { p.MaxTokens = openai.Int(1900) }), 507, "invalid_request_error", "cache_budget_exceeded", "", "limit"},
		{"model list", func(ctx context.Context) error { _, err := c.Models.Get(ctx, "no/such"); return err }, 404, "invalid_request_error", "model_not_found", "", "no/such"},
		{"embeddings", func(ctx context.Context) error {
			_, err := c.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: modelID, Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("x")}})
			return err
		}, 501, "invalid_request_error", "", "model", "embeddings"},
		{"nowhere", func(ctx context.Context) error { return c.Get(ctx, "nowhere", nil, nil) }, 404, "invalid_request_error", "not_found", "", "not found"},
		{"key", func(ctx context.Context) error {
			_, err := c.Models.List(ctx, option.WithAPIKey("wrong"))
			return err
		}, 401, "authentication_error", "invalid_api_key", "", "key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			attempts = 0
			var e *openai.Error
			require.ErrorAs(t, test.ask(t.Context()), &e)
			require.Equal(t, test.status, e.StatusCode)
			require.Equal(t, test.kind, e.Type)
			require.Equal(t, test.code, e.Code)
			require.Equal(t, test.param, e.Param)
			require.Contains(t, e.Message, test.text)
			complete(t, e)
			require.NotEmpty(t, e.Response.Header.Get("X-Request-Id"))
			require.Equal(t, 1, attempts, "to be asked once")
		})
	}
}

// firstChunk reads the beginning of a stream.
func firstChunk[T any](s *ssestream.Stream[T]) (T, error) {
	s.Next()
	return s.Current(), s.Err()
}

// long returns a request whose answer cannot finish before it is read: buffering it
// would take megabytes.
func long(i int) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{
		Model: modelID, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
		MaxTokens: openai.Int(1900), Logprobs: openai.Bool(true), TopLogprobs: openai.Int(20), Seed: openai.Int(int64(i)),
	}
	p.SetExtraFields(map[string]any{"ignore_eos": true})
	return p
}

// TestRetry: when the queue is full, the server says when to retry, and the client
// does so by itself and gets its answer.
func TestRetry(t *testing.T) {
	s := start(t, engine.Options{MaxRunning: 1, MaxQueue: 1})
	patient := s.client()
	busy := patient.Chat.Completions.NewStreaming(t.Context(), long(1))
	require.True(t, busy.Next(), "%v", busy.Err())
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	waited := make(chan error, 1)
	go func() {
		_, err := patient.Chat.Completions.New(ctx, long(2))
		waited <- err
	}()
	s.waitFor(t, "vllm:num_requests_waiting", "1")
	var statuses []int
	c := s.client(option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		answer, err := next(r)
		if err != nil {
			return nil, err
		}
		statuses = append(statuses, answer.StatusCode)
		if answer.StatusCode == http.StatusTooManyRequests {
			require.NotEmpty(t, answer.Header.Get("Retry-After"))
			answer.Header.Set("Retry-After-Ms", "1") // no need to wait in a test
			leave()
			require.ErrorIs(t, <-waited, context.Canceled)
			busy.Close()
			s.waitFor(t, "vllm:num_requests_running", "0")
			s.waitFor(t, "vllm:num_requests_waiting", "0")
		}
		return answer, nil
	}))
	p := ask(0)
	p.MaxTokens = openai.Int(2)
	answer, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	complete(t, answer)
	require.Equal(t, []int{http.StatusTooManyRequests, http.StatusOK}, statuses)
}

// waitFor polls the server's metrics until name has the value want.
func (s *server) waitFor(t *testing.T, name, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		answer, err := http.Get(s.url + "/metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return err == nil && bytes.Contains(text, []byte(name+`{model_name="`+modelID+`"} `+want+"\n"))
	}, time.Minute, 5*time.Millisecond, "%s is not %s", name, want)
}

// TestErrorInStream: a server that shuts down says so in the streams that it has begun,
// and refuses new requests with a status that the client knows to retry.
func TestErrorInStream(t *testing.T) {
	s := start(t, engine.Options{})
	c := s.client(option.WithMaxRetries(0))
	chunks := c.Chat.Completions.NewStreaming(t.Context(), long(1))
	require.True(t, chunks.Next(), "%v", chunks.Err())
	texts := c.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
		Model: modelID, MaxTokens: openai.Int(1900), Logprobs: openai.Int(20),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("One of")},
	}, option.WithJSONSet("ignore_eos", true))
	require.True(t, texts.Next(), "%v", texts.Err())
	now, cancel := context.WithCancel(context.Background())
	cancel()
	s.Drain(now)
	for chunks.Next() {
	}
	for texts.Next() {
	}
	for _, err := range []error{chunks.Err(), texts.Err()} {
		var inStream *ssestream.StreamError
		require.ErrorAs(t, err, &inStream)
		require.Contains(t, string(inStream.Event.Data), `"code":"shutting_down"`)
	}
	_, err := c.Chat.Completions.New(t.Context(), ask(0))
	var e *openai.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, http.StatusServiceUnavailable, e.StatusCode)
	require.Equal(t, "shutting_down", e.Code)
	require.NotEmpty(t, e.Response.Header.Get("Retry-After"))
}
