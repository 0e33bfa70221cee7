// An echo server on a selector, and clients on a selector, on channels and on streams.

import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Iterator;

public class Echo {
    public static void main(String[] words) throws Exception {
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("server")) {
            serve(port);
        } else if (words[0].equals("rate")) {
            System.out.println(rate(port));
        } else {
            System.out.println("streams " + streams(port));
            System.out.println("time-out " + timeOut(port));
            System.out.println("channel " + channel(port));
            System.out.println("selector " + selector(port, 16));
        }
    }

    static void serve(int port) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel accepted = listener.accept();
                    accepted.configureBlocking(false);
                    ByteBuffer buffer = ByteBuffer.allocateDirect(65536);
                    accepted.register(selector, SelectionKey.OP_READ, buffer);
                } else {
                    echo(key);
                }
            }
        }
    }

    static void echo(SelectionKey key) throws Exception {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0 && buffer.position() == 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        boolean isLeft = buffer.hasRemaining();
        boolean isFull = buffer.remaining() == buffer.capacity();
        buffer.compact();
        key.interestOps((isLeft ? SelectionKey.OP_WRITE : 0) | (isFull ? 0 : SelectionKey.OP_READ));
    }

    /** Round trips a second of one blocking connection, after as many for the compiler. */
    static double rate(int port) throws Exception {
        double rate = 0;
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setTcpNoDelay(true);
            OutputStream out = socket.getOutputStream();
            InputStream in = socket.getInputStream();
            byte[] message = new byte[64];
            for (int run = 0; run < 2; run++) {
                long begin = System.nanoTime();
                long count = 0;
                while (System.nanoTime() - begin < 1_000_000_000L) {
                    out.write(message);
                    in.readNBytes(message, 0, message.length);
                    count++;
                }
                rate = count * 1e9 / (System.nanoTime() - begin);
            }
        }
        return rate;
    }

    static String hex(MessageDigest digest) {
        return HexFormat.of().formatHex(digest.digest());
    }

    static String streams(int port) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setTcpNoDelay(true);
            OutputStream out = socket.getOutputStream();
            InputStream in = socket.getInputStream();
            for (int round = 0; round < 2000; round++) {
                byte[] message = new byte[1 + round * 31 % 3000];
                java.util.Arrays.fill(message, (byte) round);
                out.write(message);
                digest.update(in.readNBytes(message.length));
            }
        }
        return hex(digest);
    }

    static String timeOut(int port) throws Exception {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            for (int round = 0; round < 20; round++) {
                socket.getOutputStream().write(round);
                socket.getInputStream().read();
            }
            socket.setSoTimeout(50);
            try {
                return "read " + socket.getInputStream().read();
            } catch (SocketTimeoutException expected) {
                socket.getOutputStream().write(7);
                return "then read " + socket.getInputStream().read();
            }
        }
    }

    static String channel(int port) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        try (SocketChannel channel = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
            ByteBuffer[] parts = {ByteBuffer.allocateDirect(10), ByteBuffer.allocate(1000)};
            for (int round = 0; round < 1000; round++) {
                for (ByteBuffer part : parts) {
                    part.clear();
                    while (part.hasRemaining()) part.put((byte) round);
                    part.flip();
                }
                while (parts[1].hasRemaining()) channel.write(parts);
                ByteBuffer back = ByteBuffer.allocate(1010);
                while (back.hasRemaining()) channel.read(back);
                digest.update(back.array());
            }
        }
        return hex(digest);
    }

    static String selector(int port, int count) throws Exception {
        Selector selector = Selector.open();
        long[] sent = new long[count];
        long[] received = new long[count];
        long each = 600_000;
        for (int index = 0; index < count; index++) {
            SocketChannel channel = SocketChannel.open();
            channel.configureBlocking(false);
            channel.connect(new InetSocketAddress("127.0.0.1", port));
            channel.register(selector, SelectionKey.OP_CONNECT, index);
        }
        int open = count;
        ByteBuffer buffer = ByteBuffer.allocateDirect(30_000);
        while (open > 0) {
            selector.select();
            Iterator<SelectionKey> keys = selector.selectedKeys().iterator();
            while (keys.hasNext()) {
                SelectionKey key = keys.next();
                keys.remove();
                int index = (Integer) key.attachment();
                SocketChannel channel = (SocketChannel) key.channel();
                if (key.isConnectable()) {
                    channel.finishConnect();
                    key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                    continue;
                }
                if (key.isWritable()) {
                    buffer.clear();
                    buffer.limit((int) Math.min(buffer.capacity(), each - sent[index]));
                    for (int at = 0; at < buffer.limit(); at++) {
                        buffer.put(at, (byte) ((sent[index] + at) * 7 + index));
                    }
                    sent[index] += channel.write(buffer);
                    if (sent[index] == each) key.interestOps(SelectionKey.OP_READ);
                }
                if (key.isReadable()) {
                    buffer.clear();
                    int read = channel.read(buffer);
                    if (read < 0) throw new IllegalStateException("closed early");
                    for (int at = 0; at < read; at++) {
                        if (buffer.get(at) != (byte) ((received[index] + at) * 7 + index)) {
                            throw new IllegalStateException("byte " + (received[index] + at));
                        }
                    }
                    received[index] += read;
                    if (received[index] == each) {
                        channel.close();
                        open--;
                    }
                }
            }
        }
        return java.util.Arrays.stream(received).sum() + " bytes";
    }
}
