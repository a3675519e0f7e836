package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer/chat"
)

const chatHelp = `/set NAME VALUE    change a setting ("default" takes it back); /show lists them
/show              settings; /show messages, /show prompt
/load FILE         put a document into the context and compress it, or go on with a saved chat
/save FILE         save the chat with its compressed cache
/retry             draw another answer to the last message
/edit              change the last message and ask again
/copy              copy the last answer to the clipboard, where the terminal allows it
/clear             forget the conversation, keep the document; /clear all forgets both
/kv                the cache: bytes, ratio, entries kept in each layer
/help              this list
/bye               leave

Ctrl-C stops an answer. A backslash at the end of a line continues it on the next, """ begins and ends
a text of several lines. Tab completes, Ctrl-R searches what was typed before. A message that begins with a slash is written with a blank in front.
`

// command executes a line that began with a slash.
func (r *chatter) command(line string) (leave bool, err error) {
	name, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	arg = strings.TrimSpace(arg)
	p := r.reading()
	defer p.clear()
	switch name {
	case "bye", "exit", "quit":
		return true, nil
	case "help", "?":
		_, err = io.WriteString(r.e.out, chatHelp)
	case "set":
		err = r.set(arg)
	case "show":
		err = r.show(arg)
	case "kv":
		r.kv()
	case "retry":
		err = r.retry()
	case "edit":
		err = r.edit()
	case "copy":
		err = r.copy()
	case "clear":
		switch arg {
		case "":
			err = r.conv.Clear(r.busy)
		case "all":
			r.conv.State = dialog.State{System: r.conv.System}
			r.conv.Forget()
		default:
			err = fmt.Errorf("/clear: found %q, expected nothing or all", arg)
		}
	case "load", "save":
		if arg == "" {
			return false, fmt.Errorf("/%s: the name of a file is missing", name)
		}
		arg = expandHome(arg)
		if name == "load" {
			return false, r.load(arg)
		}
		if err = r.conv.Save(r.busy, arg); err == nil {
			fmt.Fprintf(r.e.out, "saved %s and %s\n", arg, dialog.StateFile(arg))
		}
	default:
		err = fmt.Errorf("/%s: no such command (/help lists them)", name)
	}
	return false, err
}

// setting is a flag that can be changed during the chat.
type setting struct {
	name   string
	policy bool // a change requires another session
	get    func(c *chatter) string
	set    func(c *chatter, value string) error // "" for the default
}

// optional returns a setting for a number that the checkpoint may have a default for.
func optional[T int | float64](name string, field func(c *chatter) **T) setting {
	return setting{name: name,
		get: func(c *chatter) string {
			if v := *field(c); v != nil {
				return fmt.Sprint(*v)
			}
			return ""
		},
		set: func(c *chatter, value string) error {
			if value == "" {
				*field(c) = nil
				return nil
			}
			v := new(T)
			*field(c) = v
			return parseNumber(name, value, v)
		}}
}

func number[T int | uint64 | float64](name string, policy bool, standard T, field func(c *chatter) *T) setting {
	return setting{name: name, policy: policy,
		get: func(c *chatter) string {
			if v := *field(c); v != standard {
				return fmt.Sprint(v)
			}
			return ""
		},
		set: func(c *chatter, value string) error {
			*field(c) = standard
			if value == "" {
				return nil
			}
			return parseNumber(name, value, field(c))
		}}
}

func words(name string, policy bool, field func(c *chatter) *string) setting {
	return setting{name: name, policy: policy,
		get: func(c *chatter) string { return *field(c) },
		set: func(c *chatter, value string) error { *field(c) = value; return nil }}
}

func parseNumber[T int | uint64 | float64](name, value string, v *T) (err error) {
	switch v := any(v).(type) {
	case *int:
		*v, err = strconv.Atoi(value)
	case *uint64:
		*v, err = strconv.ParseUint(value, 10, 64)
	case *float64:
		*v, err = strconv.ParseFloat(value, 64)
	}
	if err != nil {
		return fmt.Errorf("/set %s: found %q, expected a number", name, value)
	}
	return nil
}

var settings = []setting{
	words("system", false, func(c *chatter) *string { return &c.conv.System }),
	optional("temperature", func(c *chatter) **float64 { return &c.Temperature }),
	optional("top-k", func(c *chatter) **int { return &c.TopK }),
	optional("top-p", func(c *chatter) **float64 { return &c.TopP }),
	optional("min-p", func(c *chatter) **float64 { return &c.MinP }),
	optional("repetition-penalty", func(c *chatter) **float64 { return &c.RepetitionPenalty }),
	number("seed", false, 0, func(c *chatter) *uint64 { return &c.Seed }),
	optional("max-tokens", func(c *chatter) **int { return &c.MaxTokens }),
	number("ratio", true, 0, func(c *chatter) *float64 { return &c.Ratio }),
	number("budget-tokens", true, 0, func(c *chatter) *int { return &c.BudgetTokens }),
	number("keep-turns", false, 0, func(c *chatter) *int { return &c.KeepTurns }),
	words("metric", true, func(c *chatter) *string { return &c.Metric }),
	words("allocator", true, func(c *chatter) *string { return &c.Allocator }),
	words("profile", true, func(c *chatter) *string { return &c.Profile }),
	words("decode", true, func(c *chatter) *string { return &c.Decode }),
}

// set changes a setting. If that fails, nothing has changed.
func (r *chatter) set(arg string) error {
	if arg == "" {
		return r.show("")
	}
	name, value, _ := strings.Cut(arg, " ")
	name = strings.ReplaceAll(name, "_", "-")
	if value = strings.TrimSpace(value); value == "default" {
		value = ""
	}
	var names []string
	for _, s := range settings {
		names = append(names, s.name)
		if s.name != name {
			continue
		}
		old, oldSystem := *r.chatCmd, r.conv.System
		err := s.set(r, value)
		if err == nil {
			err = r.apply()
		}
		if err != nil {
			*r.chatCmd, r.conv.System = old, oldSystem
			return err
		}
		if !s.policy {
			return nil
		}
		p := r.reading()
		defer p.clear()
		if err := r.conv.Reread(r.busy); err != nil || r.conv.Held() == nil {
			return err
		}
		p.clear()
		r.e.advise(r.conv.Held())
		r.e.adviseLoss(r.conv.Held(), r.conv.Loss, r.MaxLoss != nil)
		r.describe()
		return nil
	}
	return fmt.Errorf("/set: found %q, expected one of %s", name, strings.Join(names, ", "))
}

// compression returns the policy that the settings describe, nil if none. Metric
// and allocator may be chosen before there is a ratio.
func (c *chatCmd) compression(m *model.Model) (*lukv.Policy, error) {
	if c.Policy == "" && c.Ratio == 0 && c.BudgetTokens == 0 && c.BudgetBytes == 0 && c.MaxLoss == nil && c.Decode == "" && c.Preset == "" {
		_, err := c.fromFlags()
		return nil, err
	}
	f := c.policyFlags
	if p, err := f.shape(); err == nil && !p.UsesProfile() && f.Policy == "" {
		f.Profile = "" // chosen before the metric or allocator
	}
	return f.policy(m, c.Model)
}

func (r *chatter) show(what string) error {
	c := r.conv
	switch what {
	case "":
		t := newTable(r.e.out)
		t.line("model", "%s, %d tokens of context", r.Model, r.limit())
		t.line("messages", "%d", len(c.Messages))
		if c.Document != "" {
			t.line("document", "%d characters", len([]rune(c.Document)))
		}
		for _, s := range settings {
			value := s.get(r)
			if value == "" {
				value = "(default)"
			}
			t.line(s.name, "%s", value)
		}
		t.line("in effect", "%s", compact(c.Sampling))
		return t.w.Flush()
	case "messages":
		for _, m := range c.All(c.Messages) {
			role, _ := m.Get("role")
			content, _ := m.Get("content")
			fmt.Fprintf(r.e.out, "%s: %s\n", role, content)
		}
		return nil
	case "prompt":
		messages := c.Messages
		if len(messages) == 0 {
			messages = append(messages, chat.NewMessage("user", "…"))
		}
		prompt, err := c.Prompt(r.busy, messages)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(r.e.out, prompt.Text)
		return err
	}
	return fmt.Errorf("/show: found %q, expected nothing, messages or prompt", what)
}

// describe prints one line about the contents of the session.
func (r *chatter) describe() {
	s := r.conv.Held()
	st := s.Stats()
	fmt.Fprintf(r.e.out, "%d tokens read, %s of cache", s.Len(), report.Bytes(st.CacheBytes))
	if st.Entries < st.FullEntries {
		fmt.Fprintf(r.e.out, " instead of %s (%.1f %% of the entries removed)", report.Bytes(st.FullBytes), 100*st.Ratio)
	}
	fmt.Fprintln(r.e.out)
}

// kv prints the cache.
func (r *chatter) kv() {
	s := r.conv.Held()
	if s == nil {
		fmt.Fprintln(r.e.out, "the cache is empty")
		return
	}
	st := s.Stats()
	t := newTable(r.e.out)
	if n := r.conv.DocumentTokens(); n > 0 {
		t.line("tokens", "%d, of this %d of the document", s.Len(), n)
	} else {
		t.line("tokens", "%d", s.Len())
	}
	t.line("cache", "%s, uncompressed %s, at the peak %s", report.Bytes(st.CacheBytes), report.Bytes(st.FullBytes), report.Bytes(st.PeakBytes))
	t.line("ratio", "%.2f %% removed, %d of %d entries kept", 100*st.Ratio, st.Entries, st.FullEntries)
	if p := s.Policy(); p != nil {
		t.line("policy", "%s", p)
	}
	if p := s.DraftPolicy(); p != nil {
		t.line("draft", "%s beside it, %s", report.Bytes(st.DraftBytes), p)
	}
	for i, l := range st.Layers {
		counts := strings.Trim(fmt.Sprint(l.Entries), "[]")
		if l.Window > 0 {
			counts += fmt.Sprintf(" (window of %d)", l.Window)
		}
		t.line("layer "+strconv.Itoa(i), "%s", counts)
	}
	t.w.Flush()
}
