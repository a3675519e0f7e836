package dialog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
)

// maxState is the maximum length in bytes of a saved state.
const maxState = 1 << 28

// savedState is stored next to a saved session.
type savedState struct {
	State
	Begun      time.Time `json:"begun"`
	Before     string    `json:"before"`      // the part of the prompt before the document
	HeadTokens int       `json:"head_tokens"` // tokens up to the end of the document
}

// StateFile returns the name of the file next to a saved session in which
// [Conversation.Save] keeps the messages.
func StateFile(session string) string { return session + ".chat.json" }

// Save writes the session to path and the messages to [StateFile]; only the
// owner may read them.
func (c *Conversation) Save(ctx context.Context, path string) error {
	if c.s == nil {
		return errors.New("save: nothing has been read yet")
	}
	if err := c.s.Save(ctx, path); err != nil {
		return err
	}
	state := savedState{c.State, c.format.now, strings.TrimSuffix(c.head, c.Document), len(c.headTokens)}
	err := atomicfile.Write(StateFile(path), 0o600, func(w io.Writer) error {
		return report.WriteJSON(w, state)
	})
	if err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// Restore resumes a saved conversation, or a session that holds only a context.
// If the policy of o compresses while decoding, it continues to do so.
func (c *Conversation) Restore(ctx context.Context, path string, o model.SessionOptions) error {
	if p := o.Compression; p != nil && !p.Decode.Enabled() {
		o.Compression = nil
	}
	s, err := c.m.LoadSession(ctx, path, o)
	if err != nil {
		return err
	}
	state, err := c.restoreState(ctx, path, s.Tokens())
	if err != nil {
		s.Close()
		return fmt.Errorf("load %s: %w", path, err)
	}
	c.Forget()
	c.State, c.s = state.State, s
	if !state.Begun.IsZero() {
		f := *c.format
		f.now = state.Begun
		c.format = &f
	}
	if state.Document != "" {
		c.head, c.headTokens = state.Before+state.Document, s.Tokens()[:state.HeadTokens]
	}
	return nil
}

// restoreState reads the messages saved next to a session. Without them,
// the session's tokens must be those of a document alone.
func (c *Conversation) restoreState(ctx context.Context, path string, tokens []int32) (savedState, error) {
	var state savedState
	file := StateFile(path)
	data, err := inputfile.Read(file, maxState)
	if err == nil {
		if err := json.Unmarshal(data, &state); err != nil {
			return state, fmt.Errorf("messages in %s: %w", file, err)
		}
		if state.HeadTokens < 0 || state.HeadTokens > len(tokens) {
			return state, fmt.Errorf("messages in %s: a document of %d tokens, the session has %d", file, state.HeadTokens, len(tokens))
		}
		return state, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return state, err
	}
	framing, err := c.format.framing(ctx, "")
	if err != nil {
		return state, err
	}
	document, ok := strings.CutPrefix(c.format.tok.Decode(tokens, false), framing.Before)
	if !ok || strings.TrimSpace(document) == "" {
		return state, fmt.Errorf("there are no messages beside it (%s), and it does not hold a document alone", file)
	}
	state.Document, state.Before, state.HeadTokens = document, framing.Before, len(tokens)
	return state, nil
}
