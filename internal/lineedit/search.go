package lineedit

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// search finds the latest history entry that contains the typed text. Ctrl-R moves to an
// older entry; Ctrl-G and Ctrl-C restore the old line. Any other key ends
// the search with the entry found, and is returned to be applied.
func (e *editor) search(ctx context.Context) (key, error) {
	own, ownAt := slices.Clone(e.line), e.at
	lines := e.t.History.lines
	var wanted []rune
	entry := len(lines)
	find := func(from int) {
		for i := min(from, len(lines)-1); i >= 0; i-- {
			if strings.Contains(lines[i], string(wanted)) {
				entry = i
				e.line = []rune(lines[i])
				e.at = len(e.line)
				return
			}
		}
	}
	prompt := e.prompt
	defer func() { e.prompt = prompt }()
	for {
		var shown strings.Builder
		for _, r := range wanted {
			shown.WriteRune(visible(r))
		}
		e.prompt = fmt.Sprintf("search %q: ", shown.String())
		e.draw()
		k, err := e.t.key(ctx)
		switch {
		case err != nil:
			return k, err
		case k.name == keyRune:
			wanted = append(wanted, k.r)
			find(entry)
		case k.name == keyBackspace && len(wanted) > 0:
			wanted = wanted[:len(wanted)-1]
			find(len(lines) - 1)
		case k.name == keySearch:
			find(entry - 1)
		case k.name == keyCancel, k.name == keyInterrupt:
			e.line, e.at = own, ownAt
			return key{name: keyNone}, nil
		default:
			if entry < len(lines) {
				e.entry, e.own = entry, own
			}
			return k, nil
		}
	}
}
