# An echo server with a thread for each connection, and its clients: threads that exchange messages
# of 64 bytes and print round trips/s.
#
#   ruby echo.rb server PORT
#   ruby echo.rb rate PORT [CONNECTIONS]
require "socket"

HOST = "127.0.0.1"
MESSAGE = "x" * 64
SECONDS = 1

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def serve(port)
  listening = TCPServer.new(HOST, port)
  loop do
    Thread.new(listening.accept) do |connection|
      connection.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
      while (message = connection.recv(64)) && !message.empty?
        connection.write(message)
      end
      connection.close
    end
  end
end

def exchange(port)
  connection = TCPSocket.new(HOST, port)
  connection.setsockopt(Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1)
  trips = 0
  finish = now + SECONDS
  while now < finish
    connection.write(MESSAGE)
    raise "no answer" if connection.read(64) != MESSAGE
    trips += 1
  end
  connection.close
  trips
end

port = ARGV[1].to_i
case ARGV[0]
when "server" then serve(port)
when "rate"
  begun = now
  threads = Array.new((ARGV[2] || "1").to_i) { Thread.new { exchange(port) } }
  puts threads.sum(&:value) / (now - begun)
else abort "usage: echo.rb server|rate PORT [CONNECTIONS]"
end
