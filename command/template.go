package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

type templateCmd struct {
	Model string `arg:"" help:"Checkpoint folder, GGUF file, hub name in the cache, or builtin."`

	User     []string `short:"u" sep:"none" placeholder:"TEXT" help:"Add a user message after those of --messages. May be repeated."`
	System   string   `short:"s" placeholder:"TEXT" help:"Add a system message before all others."`
	Messages string   `placeholder:"FILE" help:"Read messages from FILE: a JSON array, or an object with messages and optional tools, as in chat APIs; - is standard input."`
	Tools    string   `placeholder:"FILE" help:"Read tools from FILE, a JSON array."`
	Vars     string   `placeholder:"JSON" help:"Set further variables from a JSON object, such as '{\"enable_thinking\":false}'."`
	Name     string   `default:"default" placeholder:"NAME" help:"Use this template of a checkpoint with several templates."`

	GenerationPrompt bool `default:"true" negatable:"" help:"End with the start of an answer (default; disable with --no-generation-prompt)."`
	Tokens           bool `help:"Print the prompt's tokens instead of its text."`
	JSON             bool `help:"Print one JSON object with prompt and token ids."`
}

func (templateCmd) Help() string {
	return `Print the prompt that the model's chat template makes of a conversation, byte for byte.

Examples:

  lukv template DIR --user "Hello"

  lukv template DIR --messages chat.json --tools tools.json --tokens

  lukv template DIR -s "Be brief." -u "Hi" --no-generation-prompt`
}

func (c *templateCmd) Run(e *env) error {
	in, err := c.input(e)
	if err != nil {
		return err
	}
	files, err := modelFiles(c.Model)
	if err != nil {
		return err
	}
	t, err := chat.LoadNamed(files, c.Name)
	if err != nil {
		return fmt.Errorf("model %s: %w", c.Model, err)
	}
	if in.SpecialTokens, err = chat.SpecialTokens(files); err != nil {
		return fmt.Errorf("model %s: %w", c.Model, err)
	}
	prompt, err := t.Render(e.ctx, in)
	if err != nil {
		return err
	}
	if !c.Tokens && !c.JSON {
		text := prompt.Text
		if isTerminal(e.out) && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		_, err := io.WriteString(e.out, text)
		return err
	}
	tok, err := tokenizer.Load(files)
	if err != nil {
		return fmt.Errorf("model %s: %w", c.Model, err)
	}
	ids := prompt.Encode(tok)
	if c.JSON {
		return e.writeJSON("lukv template 1", map[string]any{"prompt": prompt.Text, "tokens": ids})
	}
	for _, id := range ids {
		if _, err := fmt.Fprintf(e.out, "%d\t%s\n", id, visibleName(tok.Piece(id))); err != nil {
			return err
		}
	}
	return nil
}

// input reads the conversation from the flags.
func (c *templateCmd) input(e *env) (chat.Input, error) {
	in := chat.Input{AddGenerationPrompt: c.GenerationPrompt}
	if c.System != "" {
		in.Messages = append(in.Messages, chat.NewMessage("system", c.System))
	}
	if c.Messages != "" {
		messages, tools, err := c.readMessages(e)
		if err != nil {
			return in, err
		}
		in.Messages = append(in.Messages, messages...)
		in.Tools = tools
	}
	for _, text := range c.User {
		in.Messages = append(in.Messages, chat.NewMessage("user", text))
	}
	if len(in.Messages) == 0 {
		return in, usage("no messages: give --user or --messages")
	}
	if c.Tools != "" {
		data, err := e.readText(c.Tools)
		if err == nil {
			if err = json.Unmarshal(data, &in.Tools); err != nil {
				err = fmt.Errorf("%w, expected a JSON array of tools", err)
			}
		}
		if err != nil {
			return in, fmt.Errorf("read tools %s: %w", c.Tools, err)
		}
	}
	if c.Vars != "" {
		in.Extra = new(chat.Object)
		if err := json.Unmarshal([]byte(c.Vars), in.Extra); err != nil {
			return in, usage("--vars: %w", err)
		}
	}
	return in, nil
}

func (c *templateCmd) readMessages(e *env) (messages, tools []*chat.Object, err error) {
	data, err := e.readText(c.Messages)
	if err == nil {
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			var whole struct {
				Messages, Tools []*chat.Object
			}
			err = json.Unmarshal(data, &whole)
			messages, tools = whole.Messages, whole.Tools
		} else {
			err = json.Unmarshal(data, &messages)
		}
		if err != nil {
			err = fmt.Errorf("%w, expected a JSON array of messages, or an object with them", err)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read messages %s: %w", c.Messages, err)
	}
	return messages, tools, nil
}
