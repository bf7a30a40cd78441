// Package zerolog has some names of zerolog.
package zerolog

type Logger struct{}

type Event struct{}

func (*Logger) Fatal() *Event         { return nil }
func (*Logger) Error() *Event         { return nil }
func (e *Event) Err(err error) *Event { return e }
func (*Event) Msg(string)             {}
