// One stream for several readers. Each takes a word when it can; the next word comes when all have taken it.
module fork_stream #(
    parameter int W = 8,
    parameter int READERS = 2
) (
    input  logic               clk,
    input  logic               rst,
    input  logic [W-1:0]       in_data,
    input  logic               in_valid,
    output logic               in_ready,
    output logic [W-1:0]       out_data,
    output logic [READERS-1:0] out_valid,
    input  logic [READERS-1:0] out_ready
);
    logic [READERS-1:0] taken;

    assign out_data = in_data;
    assign out_valid = {READERS{in_valid}} & ~taken;
    assign in_ready = &(taken | out_ready);

    always_ff @(posedge clk) begin
        if (rst) taken <= '0;
        else if (in_valid) taken <= in_ready ? '0 : taken | out_ready;
    end
endmodule
