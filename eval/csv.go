package eval

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// readCSV reads a table with a header and hands out its rows, keyed by column,
// each with the line on which it begins.
func readCSV(r io.Reader, each func(line int, row map[string]string) error) error {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	header, err := c.Read()
	if err == io.EOF {
		return errors.New("empty, expected a header")
	}
	if err != nil {
		return err
	}
	names := append([]string(nil), header...)
	names[0] = strings.TrimPrefix(names[0], "\ufeff")
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("header: column %q occurs twice", name)
		}
	}
	for {
		record, err := c.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		line, _ := c.FieldPos(0)
		row := make(map[string]string, len(names))
		for i, name := range names {
			if !utf8.ValidString(record[i]) {
				return fmt.Errorf("line %d: column %s: %w", line, name, errNotUTF8)
			}
			row[name] = record[i]
		}
		if err := each(line, row); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// csvItem makes an item from a row of a table with the columns of [Item].
func csvItem(row map[string]string, name string) (Item, error) {
	raw := map[string]any{}
	for _, column := range []string{"task", "context", "question", "answer_prefix", "data", "input", "dataset"} {
		if s, ok := row[column]; ok {
			raw[column] = s
		}
	}
	for _, column := range []string{"answers", "answer", "outputs", "all_classes"} {
		list, err := cellList(row[column])
		if err != nil {
			return Item{}, fmt.Errorf("column %s: %w", column, err)
		}
		if list != nil {
			raw[column] = list
		}
	}
	for _, column := range []string{"max_new_tokens", "length"} {
		n, err := cellNumber(row[column])
		if err != nil {
			return Item{}, fmt.Errorf("column %s: %w", column, err)
		}
		raw[column] = n
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return Item{}, err
	}
	return parseItem(text, name, nil)
}

// gaps are empty cells as pandas writes them.
var gaps = []string{"", "nan", "NaN", "<NA>", "None"}

// cellNumber reads a whole number, 0 for an empty cell.
func cellNumber(s string) (int, error) {
	s = strings.TrimSpace(s)
	if slices.Contains(gaps, s) {
		return 0, nil
	}
	n, err := strconv.ParseFloat(s, 64) // pandas writes 128.0 where a column has gaps
	if err != nil || !(math.Abs(n) <= math.MaxInt32 && n == math.Trunc(n)) {
		return 0, fmt.Errorf("found %q, expected a whole number", s)
	}
	return int(n), nil
}

// cellList reads the list of strings in a cell of a table, in JSON's or
// Python's notation or as one plain string. It is nil for an empty cell.
func cellList(s string) ([]string, error) {
	trimmed := strings.TrimSpace(s)
	switch {
	case slices.Contains(gaps, trimmed):
		return nil, nil
	case !strings.HasPrefix(trimmed, "["):
		return []string{s}, plain(s)
	}
	var list strict
	if json.Unmarshal([]byte(trimmed), &list) == nil {
		return list, nil
	}
	return pythonList(trimmed)
}

// notation matches values as Python prints them: calls such as array(['x']), tuples, sets,
// lists and dictionaries of strings, and columns of tables.
var notation = regexp.MustCompile(`(?s)^(?:[A-Za-z_][\w.]*\(\s*[\[({].*\)|\(\s*['"].*\)|\{\s*['"].*\}|\[\s*['"].*\]|<\w+>\s*\[.*|.*\bdtype: \w+)$`)

// plain returns an error if a text that stands for one answer is the notation of several: it
// would be looked for, brackets and all.
func plain(s string) error {
	if trimmed := strings.TrimSpace(s); notation.MatchString(trimmed) {
		return fmt.Errorf("found %.40q, a value as Python prints it: write a list of strings (.tolist())", trimmed)
	}
	return nil
}

// pythonList reads a list of strings as Python prints it.
func pythonList(s string) ([]string, error) {
	list := []string{}
	rest := strings.TrimSpace(s[1:])
	for first := true; ; first = false {
		if rest == "]" {
			return list, nil
		}
		if !first {
			after, ok := strings.CutPrefix(rest, ",")
			switch {
			case !ok && (strings.HasPrefix(rest, "'") || strings.HasPrefix(rest, `"`)):
				return nil, fmt.Errorf("found %.40q, an array without commas: write the column as lists (.tolist()) before the table", s)
			case !ok:
				return nil, fmt.Errorf("found %.40q, expected a list such as ['x', 'y']", s)
			}
			if rest = strings.TrimSpace(after); rest == "]" {
				return list, nil
			}
		}
		text, after, err := pythonString(rest)
		if err != nil {
			return nil, fmt.Errorf("found %.40q, expected a list such as ['x', 'y']: %w", s, err)
		}
		list = append(list, text)
		rest = strings.TrimSpace(after)
	}
}

// pythonString reads a quoted string in Python's notation at the beginning of s.
func pythonString(s string) (text, rest string, err error) {
	if s == "" || s[0] != '\'' && s[0] != '"' {
		return "", "", errors.New("no quoted string")
	}
	quote := s[0]
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == quote:
			return b.String(), s[i+1:], nil
		case c != '\\':
			b.WriteByte(c)
		case i+1 < len(s):
			i++
			simple := strings.IndexByte(`nrtabfv\'"`, s[i])
			digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
			switch {
			case simple >= 0:
				b.WriteByte("\n\r\t\a\b\f\v\\'\""[simple])
			case digits > 0 && i+digits < len(s):
				n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32)
				if err != nil {
					return "", "", fmt.Errorf(`escape \%.9s: %w`, s[i:], err)
				}
				b.WriteRune(rune(n))
				i += digits
			default:
				b.WriteByte('\\')
				b.WriteByte(s[i])
			}
		}
	}
	return "", "", errors.New("a string does not end")
}
