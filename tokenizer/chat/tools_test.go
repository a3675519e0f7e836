package chat

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// sources are the ways in which checkpoints carry a default template and one for tools.
func sources() map[string]func() (*Template, error) {
	const plain, tools = "plain {{ messages[0].content }}", "tools {{ tools[0].name }}"
	return map[string]func() (*Template, error){
		"files": func() (*Template, error) {
			return Load(fstest.MapFS{"chat_template.jinja": {Data: []byte(plain)}, "additional_chat_templates/tool_use.jinja": {Data: []byte(tools)}})
		},
		"config": func() (*Template, error) {
			return Load(fstest.MapFS{"tokenizer_config.json": {Data: fmt.Appendf(nil,
				`{"chat_template":[{"name":"default","template":%q},{"name":"tool_use","template":%q}]}`, plain, tools)}})
		},
	}
}

func TestToolTemplate(t *testing.T) {
	for name, load := range sources() {
		tmpl, err := load()
		require.NoError(t, err, name)
		in := Input{Messages: []*Object{NewMessage("user", "x")}}
		p, err := tmpl.Render(t.Context(), in)
		require.NoError(t, err, name)
		require.Equal(t, "plain x", p.Text, name)
		in.Tools = []*Object{new(Object).Set("name", "f")}
		p, err = tmpl.Render(t.Context(), in)
		require.NoError(t, err, name)
		require.Equal(t, "tools f", p.Text, name)
	}
	// A template for tools that cannot be parsed matters only where there are tools.
	tmpl, err := Load(fstest.MapFS{"chat_template.jinja": {Data: []byte("x")}, "additional_chat_templates/tool_use.jinja": {Data: []byte("{% if %}")}})
	require.NoError(t, err)
	_, err = tmpl.Render(t.Context(), Input{})
	require.NoError(t, err)
	_, err = tmpl.Render(t.Context(), Input{Tools: []*Object{new(Object)}})
	require.ErrorContains(t, err, "tool_use")
}
