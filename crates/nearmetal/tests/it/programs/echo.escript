#!/usr/bin/env escript
%% An echo server and its clients by gen_tcp: `echo.escript ROLE PORT BACKEND`, where the backend
%% is the driver of the run-time system (inet) or its socket module (socket).
-mode(compile).

main([Role, PortText, BackendText]) ->
    Port = list_to_integer(PortText),
    Backend = [{inet_backend, list_to_atom(BackendText)}],
    case Role of
        "server" -> server(Port, Backend);
        "passive" -> print(passive(Port, Backend, 2000, 0));
        "active" -> print(active(Port, Backend));
        "packets" -> print(packets(Port, Backend));
        "many" -> many(Port, Backend);
        "rate" -> rate(Port, Backend)
    end.

print(Digest) ->
    io:format("~s~n", [binary:encode_hex(Digest)]).

server(Port, Backend) ->
    Options = [binary, {ip, {127, 0, 0, 1}}, {reuseaddr, true}, {active, false},
               {backlog, 128}, {nodelay, true}],
    {ok, Listening} = gen_tcp:listen(Port, Backend ++ Options),
    accept(Listening).

accept(Listening) ->
    {ok, Socket} = gen_tcp:accept(Listening),
    Process = spawn(fun() -> receive start -> echo(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Process),
    Process ! start,
    accept(Listening).

%% Half of the messages are asked for, the others come by themselves.
echo(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Data} ->
            ok = gen_tcp:send(Socket, Data),
            inet:setopts(Socket, [{active, once}]),
            receive
                {tcp, Socket, More} ->
                    ok = gen_tcp:send(Socket, More),
                    echo(Socket);
                {tcp_closed, Socket} ->
                    gen_tcp:close(Socket)
            end;
        {error, closed} ->
            gen_tcp:close(Socket)
    end.

message(Number) ->
    binary:copy(<<(Number band 255)>>, 1 + Number * 37 rem 3000).

connect(Port, Options) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, Options ++ [binary, {nodelay, true}]),
    Socket.

%% A message at a time, then much at once, each received in its full length.
passive(Port, Backend, Rounds, Seed) ->
    Socket = connect(Port, Backend ++ [{active, false}]),
    One = fun(Number, Digest) ->
        Message = message(Number + Seed),
        ok = gen_tcp:send(Socket, Message),
        {ok, Message} = gen_tcp:recv(Socket, byte_size(Message)),
        crypt(Digest, Message)
    end,
    Digest = lists:foldl(One, <<>>, lists:seq(1, Rounds)),
    Block = binary:copy(<<"0123456789abcdef">>, 100000),
    Self = self(),
    spawn(fun() -> Self ! {sent, gen_tcp:send(Socket, Block)} end),
    {ok, Block} = gen_tcp:recv(Socket, byte_size(Block)),
    receive {sent, ok} -> ok end,
    ok = gen_tcp:shutdown(Socket, write),
    {error, closed} = gen_tcp:recv(Socket, 0),
    Digest.

%% Data comes as messages to the process.
active(Port, Backend) ->
    Socket = connect(Port, Backend ++ [{active, true}]),
    One = fun(Number, Digest) ->
        Message = message(Number),
        ok = gen_tcp:send(Socket, Message),
        crypt(Digest, collect(Socket, byte_size(Message), <<>>))
    end,
    Digest = lists:foldl(One, <<>>, lists:seq(1, 2000)),
    ok = gen_tcp:shutdown(Socket, write),
    receive {tcp_closed, Socket} -> ok end,
    Digest.

collect(_, 0, Data) ->
    Data;
collect(Socket, Size, Data) ->
    receive
        {tcp, Socket, Part} -> collect(Socket, Size - byte_size(Part), <<Data/binary, Part/binary>>)
    end.

%% The run-time system cuts the stream into packets by their length in front.
packets(Port, Backend) ->
    Socket = connect(Port, Backend ++ [{active, false}, {packet, 4}]),
    One = fun(Number, Digest) ->
        Message = message(Number),
        ok = gen_tcp:send(Socket, Message),
        {ok, Message} = gen_tcp:recv(Socket, 0),
        crypt(Digest, Message)
    end,
    Digest = lists:foldl(One, <<>>, lists:seq(1, 2000)),
    ok = gen_tcp:close(Socket),
    Digest.

many(Port, Backend) ->
    Self = self(),
    Seeds = lists:seq(1, 60),
    Start = fun(Seed) ->
        spawn_link(fun() -> Self ! {Seed, passive(Port, Backend, 50, Seed)} end)
    end,
    lists:foreach(Start, Seeds),
    lists:foreach(fun(Seed) -> receive {Seed, Digest} -> print(Digest) end end, Seeds).

%% Round trips a second.
rate(Port, Backend) ->
    Socket = connect(Port, Backend ++ [{active, false}]),
    Begin = erlang:monotonic_time(millisecond),
    Count = rate(Socket, binary:copy(<<1>>, 64), Begin, 0),
    io:format("~w~n", [Count * 1000 / (erlang:monotonic_time(millisecond) - Begin)]).

rate(Socket, Message, Begin, Count) ->
    case erlang:monotonic_time(millisecond) - Begin < 1000 of
        true ->
            ok = gen_tcp:send(Socket, Message),
            {ok, Message} = gen_tcp:recv(Socket, byte_size(Message)),
            rate(Socket, Message, Begin, Count + 1);
        false ->
            Count
    end.

%% Erlang's own MD5 needs no further package.
crypt(Digest, Data) ->
    erlang:md5([Digest, Data]).
