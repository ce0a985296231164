// Two streams as one: FIRST words of `a`, then SECOND words of `b`, again and again (the channels of one pixel).
module concat_stream #(
    parameter int W = 8,
    parameter int FIRST = 1,
    parameter int SECOND = 1
) (
    input  logic         clk,
    input  logic         rst,
    input  logic [W-1:0] a_data,
    input  logic         a_valid,
    output logic         a_ready,
    input  logic [W-1:0] b_data,
    input  logic         b_valid,
    output logic         b_ready,
    output logic [W-1:0] out_data,
    output logic         out_valid,
    input  logic         out_ready
);
    localparam int WORDS = FIRST + SECOND;
    localparam int CW = $clog2(WORDS);
    logic [CW-1:0] word;
    logic second;

    assign second = word >= CW'(FIRST);
    assign out_data = second ? b_data : a_data;
    assign out_valid = second ? b_valid : a_valid;
    assign a_ready = !second && out_ready;
    assign b_ready = second && out_ready;

    always_ff @(posedge clk) begin
        if (rst) word <= '0;
        else if (out_valid && out_ready) word <= (word == CW'(WORDS - 1)) ? '0 : word + 1'b1;
    end
endmodule
