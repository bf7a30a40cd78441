package protocol

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/wire"
)

// Nobody adopts data, nor a hold that has data beside it.
func TestNobodyAdoptsData(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*Site, *Names) Adoptable{
		"Lock":      func(s *Site, n *Names) Adoptable { return NewLock(s, n) },
		"Fair":      func(s *Site, n *Names) Adoptable { return NewFair(s, n) },
		"ReadSide":  func(s *Site, n *Names) Adoptable { return NewReadSide(s, n, true) },
		"WriteSide": func(s *Site, n *Names) Adoptable { return NewWriteSide(s, n, true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site, m, rdb := mini(t)
			n := namesOf(t, "l")
			l := open(site, n)
			adopt := func(id string) {
				t.Helper()
				was := rdb.HGetAll(bg, "l").Val()
				if r := Adopt(l, redistest.HoldID("new:1"), id, Secret{1}, time.Minute).Do(bg, 5*time.Second); !errors.Is(r.Err, wire.ErrForeignKey) {
					t.Errorf("%q: %+v", id, r)
				}
				if is := rdb.HGetAll(bg, "l").Val(); !reflect.DeepEqual(is, was) || m.TTL("l") <= 0 {
					t.Errorf("%q: %v for %v, was %v", id, is, m.TTL("l"), was)
				}
			}
			for _, field := range []string{"cart-product:12", "cart-product:12:write"} {
				rdb.HSet(bg, "l", field, 3, "mode", "read")
				rdb.PExpire(bg, "l", time.Hour)
				rdb.Set(bg, timer(n.Derived(""), field, 1), 1, time.Hour)
			}
			adopt("cart-product:12")
			rdb.Del(bg, "l")
			id := l.NewID().ID
			verdict(t, l, entry(id), Granted)
			rdb.HSet(bg, "l", "product:12", 3)
			adopt(id)
		})
	}
}
