package command

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// The commands about the last message and its answer.

var errNoAnswer = errors.New("there is no message yet")

// last returns the last message and its answer.
func (r *chatter) last() (question, answer string, err error) {
	n := len(r.conv.Messages)
	if n < 2 {
		return "", "", errNoAnswer
	}
	q, _ := r.conv.Messages[n-2].Get("content")
	a, _ := r.conv.Messages[n-1].Get("content")
	question, _ = q.(string)
	answer, _ = a.(string)
	return question, answer, nil
}

// retry draws another answer to the last message, with the next seed.
func (r *chatter) retry() error {
	question, _, err := r.last()
	if err != nil {
		return err
	}
	if r.conv.Sampling.Temperature == 0 {
		return errors.New("/retry: the most likely token is always taken, so the answer would be the same; /set temperature 0.7 draws")
	}
	r.Seed++
	if err := r.apply(); err != nil {
		return err
	}
	return r.again(question)
}

// again asks question in place of the last message, which stays if that fails.
func (r *chatter) again(question string) error {
	old := r.conv.Messages
	r.conv.Messages = old[:len(old)-2]
	err := r.ask(question)
	if len(r.conv.Messages) == len(old)-2 {
		r.conv.Messages = old
	}
	return err
}

// edit offers the last message for editing. The result replaces it.
func (r *chatter) edit() error {
	question, _, err := r.last()
	if err != nil {
		return err
	}
	r.draft, r.editing = question, true
	return nil
}

// copy sends the last answer to the terminal for its clipboard (OSC 52).
func (r *chatter) copy() error {
	_, answer, err := r.last()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(raw(r.e.out), "\x1b]52;c;"+base64.StdEncoding.EncodeToString([]byte(answer))+"\x07"); err != nil {
		return err
	}
	fmt.Fprintf(r.e.out, "%d characters given to the terminal\n", utf8.RuneCountInString(answer))
	return nil
}

// complete proposes commands, settings and file names.
func complete(text string) (from int, candidates []string) {
	command, arg, hasArg := strings.Cut(text, " ")
	if !strings.HasPrefix(text, "/") {
		return 0, nil
	}
	with := func(prefix string, words []string) (out []string) {
		for _, w := range words {
			if strings.HasPrefix(w, prefix) {
				out = append(out, w)
			}
		}
		return out
	}
	from = len(text) - len(arg)
	switch {
	case !hasArg:
		return 0, with(text, []string{"/bye", "/clear", "/copy", "/edit", "/help", "/kv", "/load ", "/retry", "/save ", "/set ", "/show"})
	case command == "/load" || command == "/save":
		return from, fileNames(arg)
	case command == "/show":
		return from, with(arg, []string{"messages", "prompt"})
	case command == "/clear":
		return from, with(arg, []string{"all"})
	case command == "/set" && !strings.Contains(arg, " "):
		var settingNames []string
		for _, s := range settings {
			settingNames = append(settingNames, s.name+" ")
		}
		return from, with(arg, settingNames)
	}
	return 0, nil
}

// fileNames returns the files whose path begins with text; folders end in a
// separator.
func fileNames(text string) []string {
	dir, prefix := filepath.Split(text)
	entries, err := os.ReadDir(expandHome(cmp.Or(dir, ".")))
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range entries {
		name := f.Name()
		if !strings.HasPrefix(name, prefix) || prefix == "" && strings.HasPrefix(name, ".") {
			continue
		}
		if f.IsDir() {
			name += string(filepath.Separator)
		}
		out = append(out, dir+name)
	}
	return out
}

// expandHome replaces a leading ~ with the user's home folder.
func expandHome(path string) string {
	if rest, ok := strings.CutPrefix(path, "~"+string(filepath.Separator)); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}
