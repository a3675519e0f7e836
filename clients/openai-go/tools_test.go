package openaigo

import (
	"encoding/json"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
)

var weather = map[string]any{
	"type": "object", "required": []string{"city"}, "additionalProperties": false,
	"properties": map[string]any{"city": map[string]any{"type": "string", "maxLength": 12}},
}

// checkWeather requires arguments that match the schema.
func checkWeather(t *testing.T, text string) {
	t.Helper()
	var arguments map[string]string
	require.NoError(t, json.Unmarshal([]byte(text), &arguments), text)
	require.Len(t, arguments, 1)
	require.LessOrEqual(t, len([]rune(arguments["city"])), 12)
}

// TestToolCalls: the accumulated stream equals the answer without streaming.
func TestToolCalls(t *testing.T) {
	c := start(t, engine.Options{}).client()
	p := ask(1)
	p.MaxTokens, p.N, p.Temperature, p.Seed = openai.Int(200), openai.Int(2), openai.Float(1), openai.Int(3)
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "weather", Parameters: weather})}
	for end, choice := range map[string]openai.ChatCompletionToolChoiceOptionUnionParam{
		"tool_calls": {OfAuto: openai.String("required")},
		"stop":       openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "weather"}),
	} {
		p.ToolChoice = choice
		whole, err := c.Chat.Completions.New(t.Context(), p)
		require.NoError(t, err)
		complete(t, whole)
		acc, _ := stream(t, c, p)
		for i, w := range whole.Choices {
			require.Equal(t, end, w.FinishReason)
			require.Equal(t, end, acc.Choices[i].FinishReason)
			require.Len(t, w.Message.ToolCalls, 1)
			require.Len(t, acc.Choices[i].Message.ToolCalls, 1)
			call, again := w.Message.ToolCalls[0], acc.Choices[i].Message.ToolCalls[0]
			require.NotEmpty(t, call.ID)
			require.NotEmpty(t, again.ID)
			require.Equal(t, []string{"weather", "weather"}, []string{call.Function.Name, again.Function.Name})
			require.Equal(t, call.Function.Arguments, again.Function.Arguments)
			checkWeather(t, call.Function.Arguments)
		}
		// The answer is sent back as the client writes it.
		p := p
		p.N, p.MaxTokens, p.ToolChoice = openai.Int(1), openai.Int(3), openai.ChatCompletionToolChoiceOptionUnionParam{}
		p.Messages = append(p.Messages, whole.Choices[0].Message.ToParam(), openai.ToolMessage("rain", whole.Choices[0].Message.ToolCalls[0].ID), openai.UserMessage("So?"))
		_, err = c.Chat.Completions.New(t.Context(), p)
		require.NoError(t, err)
	}
}

func TestStructuredOutput(t *testing.T) {
	c := start(t, engine.Options{}).client()
	p := ask(1)
	p.MaxTokens, p.Seed = openai.Int(200), openai.Int(3)
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "weather", Strict: openai.Bool(true), Schema: weather}}
	whole, err := c.Chat.Completions.New(t.Context(), p)
	require.NoError(t, err)
	checkWeather(t, whole.Choices[0].Message.Content)
	acc, _ := stream(t, c, p)
	require.Equal(t, whole.Choices[0].Message.Content, acc.Choices[0].Message.Content)
}

func TestResponses(t *testing.T) {
	c := start(t, engine.Options{}).client()
	p := responses.ResponseNewParams{Model: modelID, MaxOutputTokens: openai.Int(200), Temperature: openai.Float(0)}
	p.Input.OfString = openai.String("Hello")
	calls := p
	calls.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("weather", weather, true)}
	calls.ToolChoice.OfToolChoiceMode = openai.Opt(responses.ToolChoiceOptionsRequired)
	p.MaxOutputTokens = openai.Int(12)
	for name, p := range map[string]responses.ResponseNewParams{"text": p, "calls": calls} {
		t.Run(name, func(t *testing.T) {
			whole, err := c.Responses.New(t.Context(), p)
			require.NoError(t, err)
			complete(t, whole)
			text, arguments := "", ""
			var last responses.ResponseStreamEventUnion
			s := c.Responses.NewStreaming(t.Context(), p)
			for s.Next() {
				switch last = s.Current(); last.Type {
				case "response.output_text.delta":
					text += last.Delta
				case "response.function_call_arguments.delta":
					arguments += last.Delta
				}
			}
			require.NoError(t, s.Err())
			require.Equal(t, "response."+string(whole.Status), last.Type)
			require.Equal(t, whole.OutputText(), text)
			require.Equal(t, whole.OutputText(), last.Response.OutputText())
			if name == "calls" {
				call := whole.Output[0].AsFunctionCall()
				require.Equal(t, "weather", call.Name)
				require.Equal(t, call.Arguments, arguments)
				checkWeather(t, arguments)
			}
		})
	}
	p.PreviousResponseID = openai.String("resp_1")
	_, err := c.Responses.New(t.Context(), p)
	var e *openai.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "previous_response_id", e.Param)
	require.Equal(t, 400, e.StatusCode)
}
