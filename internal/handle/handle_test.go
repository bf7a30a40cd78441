package handle

import (
	"strings"
	"testing"

	"github.com/go-rlock/rlock/internal/protocol"
)

func FuzzParse(f *testing.F) {
	made := Handle{Kind: protocol.KindNamed("lock"), HoldID: "2f1c9a3e-0000-8000-8000-000000000001:7", Name: "a\nb", Secret: protocol.Secret{1, 15: 2}}
	for _, text := range []string{"", "rlock1-AAAA", made.String(), made.String() + "A", strings.ToUpper(made.String())} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Parse(text)
		if err != nil {
			if len(text) > len(version) && strings.Contains(err.Error(), text) {
				t.Errorf("the error repeats the handle: %v", err)
			}
			return
		}
		if h.String() != text {
			t.Errorf("%q is read as %+v, whose text is %q", text, h, h.String())
		}
	})
}

func TestEachKindHasHandles(t *testing.T) {
	for _, k := range protocol.Kinds {
		made := Handle{Kind: k, HoldID: "2f1c9a3e-0000-8000-8000-000000000001:-7", Name: "{x}\ny\xff", Secret: protocol.Secret{1, 2, 3}}
		h, err := Parse(made.String())
		if k.Adoptable != (err == nil && h == made) {
			t.Errorf("%s: %+v, %v", k.ID, h, err)
		}
		for i := range made.String() {
			damaged := made.String()[:i] + string(made.String()[i]^1) + made.String()[i+1:]
			if _, err := Parse(damaged); err == nil {
				t.Fatalf("%s: read %q", k.ID, damaged)
			}
		}
	}
}
