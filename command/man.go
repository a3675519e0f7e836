package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type manCmd struct{}

func (manCmd) Help() string {
	return `The page, in troff, comes from the same description as the help.

Examples:

  lukv man | man -l -

  lukv man > /usr/local/share/man/man1/lukv.1`
}

func (manCmd) Run(e *env) error {
	parser, err := newParser(new(cli))
	if err != nil {
		return err
	}
	var b strings.Builder
	manual(&b, parser.Model, readVersion().Version)
	_, err = io.WriteString(e.out, b.String())
	return err
}

// troff escapes text: backslashes, hyphens (so that flags can be copied), and
// whatever would be a request at the beginning of a line.
func troff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func manual(b *strings.Builder, app *kong.Application, version string) {
	fmt.Fprintf(b, ".TH LUKV 1 \"\" \"lukv %s\" \"\"\n.SH NAME\nlukv \\- %s\n", troff(version), troff(firstSentence(app.Help)))
	b.WriteString(".SH SYNOPSIS\n.B lukv\n.I COMMAND\n[ARGUMENT|FLAG]...\n.SH DESCRIPTION\n")
	paragraphs(b, app.Help)
	b.WriteString(".SH FLAGS OF ALL COMMANDS\n")
	flagList(b, app.Flags)
	b.WriteString(".SH COMMANDS\n")
	for _, c := range commandsOf(app) {
		if g := c.Parent; g != app.Node && g.Children[0] == c {
			fmt.Fprintf(b, ".SS lukv %s \\fICOMMAND\\fR\n", troff(g.Name))
			paragraphs(b, g.Help+"\n\n"+g.Detail)
		}
		fmt.Fprintf(b, ".SS lukv %s\n", troff(strings.TrimPrefix(c.Summary(), app.Name+" ")))
		paragraphs(b, c.Help+"\n\n"+c.Detail)
		for _, p := range c.Positional {
			fmt.Fprintf(b, ".TP\n.I %s\n%s\n", troff(p.Summary()), troff(p.Help))
		}
		flagList(b, c.Flags)
	}
}

// paragraphs writes text; indented paragraphs stay as they are.
func paragraphs(b *strings.Builder, text string) {
	for p := range strings.SplitSeq(text, "\n\n") {
		switch {
		case strings.TrimSpace(p) == "":
		case strings.HasPrefix(p, "  "):
			fmt.Fprintf(b, ".PP\n.nf\n.RS 2\n%s\n.RE\n.fi\n", troff(strings.TrimSpace(p)))
		default:
			fmt.Fprintf(b, ".PP\n%s\n", troff(p))
		}
	}
}

func flagList(b *strings.Builder, flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		name := strings.Join(names(f), ", ")
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", troff(name), troff(f.Help))
	}
}
